"""A whole sweep whose trials meet W&B servers that do not answer, answer late or refuse: it shows in the mirror alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import ray

from harness import trial as real
from harness.__main__ import main
from harness.plan import PlannedTrial
from harness.run_dir import RunDir
from harness.sweep import WorkerFunctions, run_sweep
from harness.tracking import wandb_sink
from harness.tracking.rows import row_of
from harness.tracking.wandb import kept_records, run_id, teardown
from harness.types import StepRecord
from tests.harness.real_faults import plan_of, records_of, undisturbed
from tests.harness.small import LEARNS, planned_trial
from tests.harness.wandb_client import KEY, own_client  # noqa: F401  a fixture
from tests.harness.wandb_server import WandbServer, wandb_server

pytestmark = [pytest.mark.usefixtures("own_client"), pytest.mark.slow]
TROUBLES: list[tuple[str, int | None, float]] = [
    ("well", None, 0.0), ("slow", None, 1.5), ("silent", None, 600.0), ("401", 401, 0.0), ("403", 403, 0.0),
    ("500", 500, 0.0), ("unreachable", None, 0.0),
]  # fmt: skip


def run_trial(trial: PlannedTrial, directory: Path, results_dir: Path, attempt: int = 1) -> Iterator[StepRecord]:
    """The real trial, with the server of its seed, in a process that no earlier trial has taught anything."""
    teardown()
    os.environ["WANDB_BASE_URL"] = os.environ["WANDB_TEST_SERVERS"].split()[trial.seed]
    wandb_sink._online_failed = wandb_sink._warned = False
    wandb_sink.INIT_TIMEOUT_S = wandb_sink.FINISH_TIMEOUT_S = 4.0
    return real.run_trial(trial, directory, results_dir, attempt)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[WandbServer]]:
    """One for each trouble, with one memory; the last is closed."""
    with ExitStack() as open_servers:
        started = [open_servers.enter_context(wandb_server()) for _ in TROUBLES[:-1]]
        with wandb_server() as closed:
            urls = [*(server.url for server in started), closed.url]
        for server, (_, status, delay_s) in zip(started, TROUBLES, strict=False):
            server.runs, server.history, server.summary = started[0].runs, started[0].history, started[0].summary
            server.refuses, server.delay_s = status, delay_s
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", urls[0])
        monkeypatch.setenv("WANDB_TEST_SERVERS", " ".join(urls))
        yield started


def rows(server: WandbServer, trial: PlannedTrial) -> list[dict[str, Any]]:
    stored = server.rows(run_id("small", trial.trial_id))
    return [{name: value for name, value in row.items() if name[0] != "_"} for row in stored]


def test_trouble_with_the_server_changes_no_record_and_sync_brings_what_it_lacks(
    cluster: str,
    servers: list[WandbServer],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = tmp_path / "results"
    settings: dict[str, Any] = {"tracking": {"wandb": True}, "execution": {"workers": 2}, "timing": {"rounds": 0}}
    trials = [planned_trial(seed=seed, **settings, **LEARNS) for seed in range(len(TROUBLES))]
    plan = plan_of(*trials)
    functions = WorkerFunctions(run_trial=f"{__name__}:run_trial")
    assert run_sweep(plan, plan.trials, results, functions) == 0
    said = capsys.readouterr().out
    assert f"{len(TROUBLES)} completed" in said and "warning: W&B: " in said and "to send W&B what it lacks" in said

    server = servers[0]
    assert rows(server, trials[0]) == [row_of(record) for record in kept_records(results / "small", trials[0])]
    for trial, (name, status, _) in zip(trials, TROUBLES, strict=True):
        outcome = RunDir(results / "small" / "trials" / trial.trial_id).outcome()
        assert outcome is not None and (outcome.status, outcome.attempts) == ("completed", 1)
        if status is not None or name == "unreachable":
            assert rows(server, trial) == []
    with monkeypatch.context() as quiet:
        quiet.setenv("WANDB_MODE", "disabled")
        for trial in trials[1:4]:
            assert records_of(results, trial) == undisturbed(trial, tmp_path / "undisturbed")

    for each in (1, 2):
        assert main(["sync", str(results / "small")]) == 0
        said = capsys.readouterr().out
        for trial in trials:
            kept = [row_of(record) for record in kept_records(results / "small", trial)]
            assert rows(server, trial) == kept and len(kept) > 10
            assert each == 1 or f"{trial.trial_id}: 0 rows sent" in said
    logs = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [path for folder in (tmp_path, logs) for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert any(path.suffix == ".wandb" for path in files) and any(path.name == "raylet.out" for path in files)
