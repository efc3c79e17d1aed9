"""The W&B mirror, on the real client: what an offline run holds, and that no failure reaches the trial."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import harness.tracking.wandb_sink as sink_module
from harness.plan import PlannedTrial
from harness.tracking.wandb import run_id, tracking_mode
from harness.tracking.wandb_sink import WandbSink
from tests.harness.faults import small_plan
from tests.harness.wandb_client import (
    COMPLETED,
    KEY,
    TRIAL,
    attempt,
    evaluation,
    own_client,  # noqa: F401  a fixture
    train,
)
from tests.harness.wandb_server import wandb_server

CLOSED = "http://127.0.0.1:9"
pytestmark = pytest.mark.usefixtures("own_client")


@pytest.fixture
def trial() -> PlannedTrial:
    return TRIAL


@pytest.fixture
def sweep_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "default"
    folder.mkdir(parents=True)
    return folder


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("harness")]


def runs(sweep_dir: Path) -> list[list[dict[str, Any]]]:
    """The log of every offline run, as W&B's own reader prints it, in the order of their start."""
    folders = sorted((sweep_dir / "wandb").glob("offline-run-*"), key=lambda path: path.stat().st_mtime_ns)
    logs = []
    for folder in folders:
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(folder)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        logs.append([json.loads(line) for line in text.splitlines()])
    return logs


def rows(log: list[dict[str, Any]]) -> list[dict[str, float]]:
    items = [entry["history"]["item"] for entry in log if entry["type"] == "history"]
    return [{name: value for name, value in item.items() if not name.startswith("_")} for item in items]


def test_a_trial_is_one_run_with_every_number_over_samples_trained(sweep_dir: Path, trial: PlannedTrial) -> None:
    sink = WandbSink(trial, sweep_dir, {"commit": "abc"})
    records = [evaluation(0), train(64), train(128), evaluation(128)]
    for record in records:
        sink.write(record)
    sink.close(COMPLETED)
    [log] = runs(sweep_dir)
    run = next(entry["run"] for entry in log if entry["type"] == "run")
    assert run["run_id"] == run_id("default", trial.trial_id)
    assert (run["display_name"], run["run_group"], run["project"]) == (trial.trial_id, "P8-G8-sqrt", "invariance")
    assert (run["job_type"], run["tags"]) == ("trial", ["default", "grpo", "sqrt", "mine"])
    config = run["config"]["update"]
    assert config["batch"]["num_prompts"] == 8 and config["optimizer"]["betas"] == [0.9, 0.999]
    assert (config["arm"], config["axes"]["train_batch"]) == ("P8-G8-sqrt", 64)
    assert config["provenance"] == {"commit": "abc"}
    metrics = [entry["metric"] for entry in log if entry["type"] == "metric"]
    assert metrics[0]["name"] == "samples_trained"
    assert (metrics[1]["glob_name"], metrics[1]["step_metric"]) == ("*", "samples_trained")
    counters = {"samples_trained": 128, "samples_generated": 128, "optimizer_steps": 2, "wall_s": 1.28}
    assert rows(log)[2:] == [
        counters | {"reward/mean": 0.128, "step": 2, "lr": 1e-3, "seconds/generate": 0.25, "seconds/train": 0.5},
        counters | {"eval/score": 0.256},
    ]
    assert [row["samples_trained"] for row in rows(log)] == [0, 64, 128, 128]
    assert log[-1]["exit"]["exit_code"] == 0
    summary: dict[str, Any] = {}
    for entry in log:
        if entry["type"] == "summary":
            summary |= entry["summary"].get("update", {})
    assert (summary["outcome"], summary["outcome_reason"]) == ("completed", "the sample budget is used")


@pytest.mark.parametrize(
    ("said", "mode"),
    [("", "offline"), ("online", "online"), ("Disabled", "disabled"), ("dryrun", "offline"), ("shared", "offline")],
)
def test_offline_unless_wandb_mode_says_otherwise(said: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", said)
    assert tracking_mode() == mode


def test_disabled_writes_nothing(sweep_dir: Path, trial: PlannedTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    sink = WandbSink(trial, sweep_dir)
    sink.write(train(64))
    sink.close(COMPLETED)
    assert list(sweep_dir.iterdir()) == []


def test_a_server_that_does_not_answer_is_tried_once_and_the_records_go_offline(
    sweep_dir: Path, trial: PlannedTrial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", CLOSED)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(sink_module, "INIT_TIMEOUT_S", 1.0)
    for _ in range(2):
        sink = WandbSink(trial, sweep_dir)
        sink.write(train(64))
        sink.close(COMPLETED)
    [warning] = warnings(caplog)
    assert warning.startswith("W&B: ") and "metrics.jsonl has every record" in warning
    assert [[row["samples_trained"] for row in rows(log)] for log in runs(sweep_dir)] == [[64], [64]]
    files = [path for path in sweep_dir.rglob("*") if path.is_file()]
    assert files and not any(KEY.encode() in path.read_bytes() for path in files)


def core_processes() -> list[int]:
    """Ids of the client's core processes below this one."""
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "wandb-core"], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def test_a_client_that_breaks_is_warned_about_once_and_the_next_trial_has_a_new_one(
    sweep_dir: Path, trial: PlannedTrial, caplog: pytest.LogCaptureFixture
) -> None:
    sink = WandbSink(trial, sweep_dir)
    sink.write(train(64))
    [core] = core_processes()
    os.kill(core, signal.SIGKILL)
    os.waitpid(core, 0)
    for samples in (128, 192, 256):
        sink.write(train(samples))
    sink.close(COMPLETED)
    assert len(warnings(caplog)) == 1
    sink = WandbSink(trial, sweep_dir)
    sink.write(train(64))
    sink.close(COMPLETED)
    assert len(warnings(caplog)) == 1
    assert [row["samples_trained"] for row in rows(runs(sweep_dir)[-1])] == [64]


def test_without_the_package_the_trial_goes_on(
    sweep_dir: Path, trial: PlannedTrial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import wandb  # noqa: F401  the fixture tears the real one down

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "wandb", None)
        sink = WandbSink(trial, sweep_dir)
        sink.write(train(64))
        sink.close(COMPLETED)
    assert len(warnings(caplog)) == 1 and list(sweep_dir.iterdir()) == []


def test_a_later_attempt_offline_goes_on_where_the_folders_before_it_end(sweep_dir: Path) -> None:
    one, two = small_plan([8], seeds=2, tracking={}).trials
    attempt(one, sweep_dir, [evaluation(0), train(64), train(128)])
    attempt(one, sweep_dir, [train(128), train(192)], COMPLETED)
    attempt(two, sweep_dir, [train(64)])
    logs = runs(sweep_dir)
    assert [[row["samples_trained"] for row in rows(log)] for log in logs] == [[0, 64, 128], [192], [64]]
    ids = [next(entry["run"]["run_id"] for entry in log if entry["type"] == "run") for log in logs]
    assert ids[0] == ids[1] != ids[2]


def test_wandbs_own_sync_joins_what_attempts_wrote_offline(
    sweep_dir: Path, trial: PlannedTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(trial, sweep_dir, [train(64), train(128)])
    attempt(trial, sweep_dir, [train(128), train(192)], COMPLETED)
    with wandb_server() as server:
        folders = sorted(map(str, (sweep_dir / "wandb").glob("offline-run-*")))
        assert len(folders) == 2
        subprocess.run(
            [sys.executable, "-m", "wandb", "sync", *folders],
            check=True,
            capture_output=True,
            cwd=sweep_dir,  # the client keeps a log of its own where it stands
            env=os.environ | {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY},
        )
        assert [row["samples_trained"] for row in server.rows(run_id("default", trial.trial_id))] == [64, 128, 192]
