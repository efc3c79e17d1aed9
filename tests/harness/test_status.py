"""The state of a sweep as another process reads it from its folder, with times and rates worked by hand."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import rich.console

import harness.status_command as command
from harness.__main__ import main
from harness.plan import Plan, PlannedTrial
from harness.plan_file import store_plan
from harness.run_dir import RunDir, exclusive, is_held
from harness.status import TrialStatus, read_status
from harness.types import TrialOutcome
from tests.harness.faults import small_plan, trial_folder

HOLD = "import sys, time; from pathlib import Path; from harness.run_dir import exclusive\n"
HOLD += "with exclusive(Path(sys.argv[1]), 0, ''): print('held', flush=True); time.sleep(600)"


@contextmanager
def held_elsewhere(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the lock file."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Six trials of 512 samples: seeds 0, 1, 2 of P = 8 and of P = 16, in the order P8 s0, P16 s0, P8 s1, ..."""
    made = small_plan([8, 16], seeds=3)
    store_plan(made, tmp_path / "faults")
    return made


def write(results: Path, trial: PlannedTrial, *records: dict[str, Any]) -> RunDir:
    folder = trial_folder(results, trial)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return RunDir(folder)


def point(samples: int, wall_s: float, score: float | None = None) -> dict[str, Any]:
    metrics = {} if score is None else {"eval/score": score}
    kind = "train" if score is None else "eval"
    return {"kind": kind, "samples_trained": samples, "wall_s": wall_s, "metrics": metrics}


def end(run: RunDir, status: Any, reason: str = "", samples: int = 512) -> None:
    run.write_outcome(TrialOutcome(status, reason, samples, samples, 8, 10.0, 1))


def states(plan: Plan, results: Path) -> list[str]:
    return [each.state for each in read_status(plan, results / "faults", 0.0).trials]


def of(plan: Plan, results: Path, place: int, now_s: float = 0.0) -> TrialStatus:
    return read_status(plan, results / "faults", now_s).trials[place]


def test_running_is_told_from_dead_by_the_lock_that_the_kernel_frees(plan: Plan, tmp_path: Path) -> None:
    first = plan.trials[0]
    write(tmp_path, first, point(0, 0.5, 0.25), point(64, 1.0))
    assert states(plan, tmp_path) == ["waiting"] * 6
    with held_elsewhere(trial_folder(tmp_path, first) / "lock") as process:
        assert states(plan, tmp_path) == ["running", *["waiting"] * 5]
        process.kill()
        process.wait()
        assert states(plan, tmp_path) == ["waiting"] * 6
    assert not read_status(plan, tmp_path / "faults", 0.0).is_running
    with held_elsewhere(tmp_path / "faults" / "lock"):
        assert read_status(plan, tmp_path / "faults", 0.0).is_running


def test_asking_for_a_lock_never_keeps_its_owner_out(tmp_path: Path) -> None:
    lock, over = tmp_path / "lock", threading.Event()
    lock.touch()

    def ask() -> None:
        while not over.is_set():
            is_held(lock)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(200):
            with exclusive(lock, 0.0, "refused"):
                pass
    finally:
        over.set()
        asking.join()
    assert not is_held(tmp_path / "none") and not (tmp_path / "none").exists()


def test_rate_and_time_left_of_a_trial_and_of_the_sweep(plan: Plan, tmp_path: Path) -> None:
    first, second, third = plan.trials[:3]
    # Of 256 samples the later half, 128 and on, was done in 4 s, evaluations included: 32 a second, 8 s for 256 more.
    records = [point(0, 0.5, 0.1), point(64, 10.0), point(128, 12.0, 0.3), point(192, 14.0), point(256, 16.0, 0.4)]
    run = write(tmp_path, first, *records)
    os.utime(run.metrics_path, (1000.0, 1000.0))
    # The second attempt did the same in half the time; its records count.
    write(tmp_path, second, *records, *(point(n, 12 + (n - 128) / 64, 0.5) for n in (192, 256)))
    end(write(tmp_path, third, point(0, 1.0, 0.2), point(512, 17.0, 0.9)), "completed")
    with held_elsewhere(trial_folder(tmp_path, first) / "lock"), held_elsewhere(tmp_path / "faults" / "lock"):
        status = read_status(plan, tmp_path / "faults", 1003.0)
    one, two, three = status.trials[:3]
    assert (one.samples_trained, one.score, one.samples_per_s, one.left_s, one.silent_s) == (256, 0.4, 32, 8, 3.0)
    assert (two.state, two.score, two.samples_per_s, two.silent_s) == ("waiting", 0.5, 64, None)
    assert (three.state, three.samples_per_s) == ("completed", None)  # one point in the later half: no rate
    assert status.counts == {"running": 1, "waiting": 4, "completed": 1}
    assert status.samples_per_s == 32
    # P8: 16 s a trial: 8 s left of the first, 16 s of seed 2. P16: 8 s a trial: 4 s of the second, 8 s of seeds 1, 2.
    assert status.left_s == 8 + 16 + 4 + 8 + 8
    assert not status.is_done and not status.is_timing


def test_a_sweep_is_done_when_nothing_is_left_and_no_process_has_it(plan: Plan, tmp_path: Path) -> None:
    for trial in plan.trials:
        end(write(tmp_path, trial, point(512, 8.0, 0.5)), "completed")
    assert read_status(plan, tmp_path / "faults", 0.0).is_done
    timed = small_plan([8, 16], seeds=3, timing={"rounds": 1})
    with held_elsewhere(tmp_path / "faults" / "lock"):
        status = read_status(timed, tmp_path / "faults", 0.0)
    assert status.is_timing and not status.is_done


def test_the_table_says_why_and_a_hostile_folder_neither_stops_nor_dresses_it(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write(tmp_path, trial, point(0, 0.5, 0.25)) for trial in plan.trials]
    end(runs[0], "completed")
    end(runs[1], "diverged", "loss is NaN", 64)
    end(runs[2], "failed", "ValueError: [/bold] \x1b[31m of [red]", 0)
    end(runs[3], "interrupted", "stopped by Ctrl-C or SIGTERM", 0)
    (runs[4].path / "outcome.json").write_text('{"status": "won", "reason": 7, "samples_trained": "many"}')
    odd: list[Any] = [
        7,
        [],
        {"kind": "eval"},
        {"kind": [], "samples_trained": {}},
        {"kind": "eval", "samples_trained": "x"},
    ]
    odd += [point(64, 2.0) | {"wall_s": "later", "metrics": {"eval/score": [0.5]}}, point(64, 2.0) | {"metrics": None}]
    (runs[5].path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in odd))
    assert main(["status", str(tmp_path / "faults")]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "sweep faults, 6 trials: 1 completed, 1 diverged, 1 failed, 1 interrupted, 2 waiting"
    ids = [trial.trial_id for trial in plan.trials]
    assert lines[2:] == [
        f"{ids[0]} completed 0 512 0.250 - -",
        f"{ids[1]} diverged 0 512 0.250 - - loss is NaN",
        f"{ids[2]} failed 0 512 0.250 - - ValueError: [/bold] [31m of [red]",
        f"{ids[3]} interrupted 0 512 0.250 - - stopped by Ctrl-C or SIGTERM",
        f"{ids[4]} waiting 0 512 0.250 - -",
        f"{ids[5]} waiting 64 512 - - - goes on from its last checkpoint",
        "no process is running this sweep: python -m harness sweep with its sweep file goes on with what is missing",
    ]


def test_watching_goes_on_until_the_sweep_is_done(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each look one more trial has ended."""
    left = list(plan.trials)

    class Clock:
        time = staticmethod(lambda: 0.0)

        @staticmethod
        def sleep(seconds: float) -> None:
            assert seconds == command.WATCH_EVERY_S
            end(write(tmp_path, left.pop(0), point(512, 8.0, 0.5)), "completed")

    monkeypatch.setattr(command, "time", Clock)
    assert main(["status", str(tmp_path / "faults"), "--watch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "sweep faults, 6 trials: 6 waiting",
        "sweep faults, 6 trials: 1 completed, 5 waiting",
        "sweep faults, 6 trials: 2 completed, 4 waiting",
    ]
    assert lines[6].startswith("sweep faults, 6 trials: 6 completed") and "done; next:" in lines[-1] and not left


def test_watching_on_a_terminal_shows_what_runs_and_ends_with_ctrl_c(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = rich.console.Console(force_terminal=True, width=150, height=20, color_system=None)
    monkeypatch.setattr(command, "console", lambda: terminal)

    def ctrl_c(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", ctrl_c)
    write(tmp_path, plan.trials[1], point(64, 2.0))
    with held_elsewhere(trial_folder(tmp_path, plan.trials[1]) / "lock"):
        assert main(["status", str(tmp_path / "faults"), "--watch"]) == 0
    shown = capsys.readouterr().out
    assert "1 running, 5 waiting" in shown and plan.trials[1].trial_id in shown
    assert plan.trials[0].trial_id not in shown


def test_a_screen_of_80_columns_holds_a_row_and_says_who_is_silent(plan: Plan, tmp_path: Path) -> None:
    write(tmp_path, plan.trials[0], point(64, 2.0), point(128, 4.0, 0.25))
    metrics = trial_folder(tmp_path, plan.trials[0]) / "metrics.jsonl"
    os.utime(metrics, (100.0, 100.0))
    with held_elsewhere(trial_folder(tmp_path, plan.trials[0]) / "lock"):
        status = read_status(plan, tmp_path / "faults", now_s=145.0)
    for width, columns in ((80, "0.250 0:00:12 silent for 0:00:45"), (120, "512 0.250 32 0:00:12 silent for 0:00:45")):
        out = rich.console.Console(file=io.StringIO(), width=width)
        with out.capture() as captured:
            out.print(command._view(status, tmp_path / "faults", width, whole=False))
        lines = captured.get().splitlines()
        [row] = [line for line in lines if line.startswith(plan.trials[0].trial_id)]
        assert lines[-1] == "the process that ran this sweep is gone, and its workers are about to end"
        assert len(row) <= width and " ".join(row.split()) == f"{plan.trials[0].trial_id} running 128 {columns}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "none: no such folder or file; needs results/<sweep>, or a sweep file"),
        (["empty"], "empty: no plan.json; python -m harness plan or sweep with the sweep file writes it"),
        (["empty", "--set", "seeds=1"], "--set seeds=1: empty is a folder of results; needs its sweep file instead"),
    ],
)
def test_wrong_folders(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["status", *arguments]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
