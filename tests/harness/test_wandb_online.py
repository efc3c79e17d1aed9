"""W&B online, the real client against a server on the loopback: nothing lost, nothing twice, and no trial stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import harness.tracking.wandb as client
import harness.tracking.wandb_sink as sink_module
from harness.__main__ import main
from harness.plan_file import store_plan
from harness.run_dir import exclusive
from harness.tracking.jsonl import read_records
from harness.tracking.rows import row_of
from harness.tracking.wandb import run_id
from tests.harness.wandb_client import (
    COMPLETED,
    KEY,
    PLAN,
    STREAMING,
    TRIAL,
    attempt,
    evaluation,
    own_client,  # noqa: F401  a fixture
    record,
    train,
    trial_run,
)
from tests.harness.wandb_server import WandbServer, wandb_server

pytestmark = pytest.mark.usefixtures("own_client")
RUN = run_id("faults", TRIAL.trial_id)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with wandb_server() as started:
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_BASE_URL", started.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield started


@pytest.fixture
def sweep_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "faults"
    store_plan(PLAN, folder)
    return folder


def rows(server: WandbServer) -> list[dict[str, float]]:
    """The rows of the trial, without the client's own columns."""
    return [{name: value for name, value in row.items() if name[0] != "_"} for row in server.rows(RUN)]


def assert_mirrors(server: WandbServer, sweep_dir: Path, num_records: int) -> None:
    """The server has every record once, in order, as metrics.jsonl has it."""
    kept, _ = read_records(sweep_dir / "trials" / TRIAL.trial_id / "metrics.jsonl")
    last = {(r["kind"], r["samples_trained"]): row_of(r) for r in kept}
    expected = [record(place).as_json() for place in range(num_records)]
    assert rows(server) == [last[r["kind"], r["samples_trained"]] for r in expected]
    assert [row["_step"] for row in server.rows(RUN)] == list(range(num_records))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("harness")]


def test_a_later_attempt_joins_the_run_and_repeats_no_row(
    server: WandbServer, sweep_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attempt(TRIAL, sweep_dir, [record(place) for place in range(5)])
    attempt(TRIAL, sweep_dir, [record(place) for place in range(3, 9)], COMPLETED)
    assert_mirrors(server, sweep_dir, 9)
    [(name, run)] = server.runs.items()
    assert (name, run["groupName"], run["displayName"]) == (RUN, "P8-G8-sqrt", TRIAL.trial_id)
    assert json.loads(run["config"])["batch"]["value"]["num_prompts"] == 8
    assert server.summary[RUN]["outcome"] == "completed"
    assert warnings(caplog) == []


def test_what_a_streaming_trial_makes_again_is_another_row_of_a_later_attempt(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not repeat itself: rows say which attempt they are of, and the last one's count. Offline and by sync too."""

    def scored(places: range, score: float) -> Iterator[Any]:
        yield from (replace(record(place), metrics={"eval/score": score}) for place in places)

    [trial] = STREAMING.trials
    expected = [(64 * ((place + 1) // 2), 1, 0.1) for place in range(5)]
    expected += [(64 * ((place + 1) // 2), 2, 0.2) for place in range(3, 7)]
    for name, modes in {"online": ["online"] * 2, "mixed": ["offline", "online"], "offline": ["offline"] * 2}.items():
        folder = tmp_path / "results" / name
        store_plan(STREAMING, folder)
        for mode, places, score, outcome in zip(
            modes, (range(5), range(3, 7)), (0.1, 0.2), (None, COMPLETED), strict=True
        ):
            monkeypatch.setenv("WANDB_MODE", mode)
            attempt(trial, folder, scored(places, score), outcome)
        if name == "offline":
            assert main(["sync", str(folder)]) == 0
        sent = server.rows(run_id(name, trial.trial_id))
        assert [(row["samples_trained"], row["attempt"], row["eval/score"]) for row in sent] == expected
        # An attempt that goes on where the records end is not told from the one before it.
        attempt(trial, folder, scored(range(7, 8), 0.3), COMPLETED)
        assert main(["sync", str(folder)]) == 0
        assert [row["attempt"] for row in server.rows(run_id(name, trial.trial_id))] == [1] * 5 + [2] * 5


@pytest.mark.parametrize("what", ["process", "group"])
def test_a_kill_in_the_middle_loses_no_row_and_doubles_none(server: WandbServer, sweep_dir: Path, what: str) -> None:
    command = [sys.executable, "-m", "tests.harness.wandb_killed", str(sweep_dir), "41", what]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    # The next attempt goes on from a checkpoint eleven records before the kill.
    attempt(TRIAL, sweep_dir, [record(place) for place in range(30, 51)], COMPLETED)
    assert_mirrors(server, sweep_dir, 51)


def test_records_that_were_written_offline_go_first_once_there_is_a_server(
    server: WandbServer, sweep_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    attempt(TRIAL, sweep_dir, [record(place) for place in range(5)])
    assert server.runs == {}
    monkeypatch.setenv("WANDB_MODE", "online")
    attempt(TRIAL, sweep_dir, [record(place) for place in range(3, 9)], COMPLETED)
    assert_mirrors(server, sweep_dir, 9)


def test_a_record_that_only_the_server_still_has_is_not_sent_again(server: WandbServer, sweep_dir: Path) -> None:
    """A power cut may take records that the kernel had not written; they are computed again, bit for bit."""
    attempt(TRIAL, sweep_dir, [record(place) for place in range(5)])
    path = trial_run(TRIAL, sweep_dir).metrics_path
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    attempt(TRIAL, sweep_dir, [record(place) for place in range(2, 9)], COMPLETED)
    assert_mirrors(server, sweep_dir, 9)


@pytest.mark.parametrize("trouble", [401, 500, "slow"])
def test_a_server_that_refuses_or_hangs_is_warned_about_once_and_the_trials_go_on(
    trouble: Any,
    server: WandbServer,
    sweep_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink_module, "INIT_TIMEOUT_S", 1.0)
    if trouble == "slow":
        server.delay_s = 600.0
    else:
        server.refuses = trouble
    for trial in PLAN.trials:
        attempt(trial, sweep_dir, [record(place) for place in range(3)], COMPLETED)
    [warning] = warnings(caplog)
    assert warning.startswith("W&B: ") and "python -m harness sync sends them" in warning and KEY not in warning
    assert len(list((sweep_dir / "wandb").glob("offline-run-*"))) == 2
    assert server.history == {}


def test_a_server_that_goes_away_in_the_middle_stops_nothing_and_sync_sends_the_rest(
    server: WandbServer, sweep_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "FINISH_TIMEOUT_S", 1.0)
    attempt(TRIAL, sweep_dir, [record(place) for place in range(5)])

    def records() -> Iterator[Any]:
        yield record(5)
        server.refuses = 503
        yield record(6)

    attempt(TRIAL, sweep_dir, records(), COMPLETED)
    [warning] = warnings(caplog)
    assert "Timed out" in warning or "Timeout" in warning
    server.refuses = None
    assert main(["sync", str(sweep_dir)]) == 0
    assert_mirrors(server, sweep_dir, 7)


def test_sync_sends_what_was_written_offline_and_can_be_repeated(
    server: WandbServer, sweep_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    one, two = PLAN.trials
    attempt(one, sweep_dir, [record(place) for place in range(5)])
    attempt(one, sweep_dir, [record(place) for place in range(3, 9)], COMPLETED)
    attempt(two, sweep_dir, [evaluation(0), train(64)])
    assert main(["sync", str(sweep_dir)]) == 0
    assert_mirrors(server, sweep_dir, 9)
    assert server.summary[RUN]["outcome"] == "completed" and server.runs[RUN]["groupName"] == "P8-G8-sqrt"
    assert [row["samples_trained"] for row in server.rows(run_id("faults", two.trial_id))] == [0, 64]
    attempt(two, sweep_dir, [train(128)], COMPLETED)
    with exclusive(sweep_dir / "trials" / one.trial_id / "lock", 0.0, ""):
        assert main(["sync", str(sweep_dir)]) == 0
    assert main(["sync", str(sweep_dir)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{one.trial_id}: 9 rows sent",
        f"{two.trial_id}: 2 rows sent",
        f"no report: python -m analysis report {sweep_dir} makes one",
        f"{one.trial_id}: left out, it is running; the same command sends it later",
        f"{two.trial_id}: 1 rows sent",
        f"no report: python -m analysis report {sweep_dir} makes one",
        f"{one.trial_id}: 0 rows sent",
        f"{two.trial_id}: 0 rows sent",
        f"no report: python -m analysis report {sweep_dir} makes one",
    ]
    assert_mirrors(server, sweep_dir, 9)
    # Nothing but the offline folders of the attempts is left behind.
    assert len(list((sweep_dir / "wandb").glob("*run-*"))) == 4


def test_the_report_is_a_run_with_its_table_figures_and_artifacts(
    server: WandbServer, sweep_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = sweep_dir / "report"
    for folder in ("tables", "figures"):
        (report / folder).mkdir(parents=True)
    (report / "report.json").write_text(json.dumps({"headline": ["Use B = 64."]}))
    (report / "tables" / "arms.csv").write_text("arm,r_N,verdict\nP8,1.0,reference\nP16,,slower\n")
    Image.new("RGB", (4, 4)).save(report / "figures" / "curves.png")
    run = trial_run(TRIAL, sweep_dir)
    (run.path / "config.json").write_text("{}")

    for said in ("report: sent", "report: there already"):
        assert main(["sync", str(sweep_dir)]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == said
    name = run_id("faults", "report")
    [row] = server.rows(name)
    assert row["arms"]["nrows"] == 2 and row["figures/curves"]["width"] == 4
    table = json.loads(next(content for path, content in server.files.items() if "media/table/arms" in path))
    assert table == {"columns": ["arm", "r_N", "verdict"], "data": [["P8", 1.0, "reference"], ["P16", None, "slower"]]}
    assert (server.runs[name]["jobType"], server.runs[name]["notes"]) == ("report", "Use B = 64.")
    kinds = {made["type"]: name for name, versions in server.artifacts.items() for made in versions}
    assert kinds.keys() - {"run_table"} == {"report", "plan", "config"}
    stored = {path for path in server.files if path.startswith("faults-")}
    assert stored == {
        "faults-report:0/report/report.json", "faults-report:0/report/tables/arms.csv",
        "faults-report:0/report/figures/curves.png", "faults-plan:0/plan.json",
        f"faults-config:0/trials/{TRIAL.trial_id}/config.json",
    }  # fmt: skip
    (report / "report.json").write_text(json.dumps({"headline": ["Use B = 128."]}))
    assert main(["sync", str(sweep_dir)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "report: sent"
    assert len(server.rows(name)) == 2 and len(server.artifacts["faults-report"]) == 2
    assert len(server.artifacts["faults-plan"]) == 1  # the same content is the same version


def test_sync_without_a_server_is_a_sentence(
    sweep_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(client.SEND_TIMEOUTS, "init_timeout", 1.0)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    attempt(TRIAL, sweep_dir, [record(0)])
    assert main(["sync", str(sweep_dir)]) == 3
    said = capsys.readouterr().err
    assert "error: W&B: " in said and "the same command sends the rest" in said and KEY not in said
    assert os.environ["WANDB_API_KEY"] == KEY
