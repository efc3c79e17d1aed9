"""What a person sees of a running sweep, worked by hand on a clock that the test sets."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import harness.progress as progress_module
from harness.progress import Display, Progress, summary_table
from harness.run_dir import RunDir
from harness.tracking.jsonl import JsonlSink
from harness.types import StepRecord, TrialOutcome
from tests.harness.faults import small_plan


class Clock:
    """Stands in for the time module."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def ended(samples: int) -> TrialOutcome:
    return TrialOutcome("completed", "", samples, samples, 8, 10.0, 1)


def test_the_table_shows_rate_and_time_left(clock: Clock) -> None:
    first, second, third = small_plan([8], seeds=3).trials  # 512 samples each
    out = Console(file=io.StringIO(), force_terminal=False, width=100)
    display = Display(out, "sweep faults", [first, second, third], num_workers=1)
    with display:
        display.started(first)
        clock.now = 2.0
        display.progressed(first.trial_id, Progress(64, None))
        clock.now = 4.0
        display.progressed(first.trial_id, Progress(192, 0.25))
        # 128 samples in 2 s: 64 a second, so 320 more take 5 s. The trial takes 4 + 5 s, and so will the two others.
        with out.capture() as captured:
            out.print(display._table())
        lines = captured.get().splitlines()
        assert lines[0] == "sweep faults: none done of 3; 0:00:04 so far, about 0:00:23 left"
        assert lines[2].split() == ["P8-G8-sqrt", "0", "192/512", "0.250", "64", "0:00:05"]
        clock.now = 10.0
        display.ended(first.trial_id, ended(512))
        # Nothing runs: two trials at the 10 s that the first took.
        with out.capture() as captured:
            out.print(display._table())
        assert captured.get().splitlines()[0] == "sweep faults: 1 completed of 3; 0:00:10 so far, about 0:00:20 left"


def test_the_summary_has_one_row_an_arm_from_what_lies_on_the_disk(tmp_path: Path) -> None:
    plan = small_plan([8, 16], seeds=2)
    for trial, score in zip(plan.trials[:3], (0.4, 0.7, 0.6), strict=True):
        run = RunDir(tmp_path / "trials" / trial.trial_id)
        run.start({}, {})
        sink = JsonlSink(run.metrics_path)
        # 256 samples at 1.5 s and 256 at 0.5 s; the first is computed twice and counts once. Evaluation is not training.
        for samples, seconds in ((256, 9.0), (256, 1.5), (512, 0.5)):
            sink.write(StepRecord("train", samples, samples, 4, 1.0, {}, {"seconds": {"generate": seconds}}))
        sink.write(StepRecord("eval", 512, 512, 8, 1.0, {"eval/score": score}, {"seconds": {"eval": 3.0}}))
        sink.close()
        run.write_outcome(ended(512))
    out = Console(file=io.StringIO(), width=100)
    with out.capture() as captured:
        out.print(summary_table(plan.trials, tmp_path, "eval/score"))
    rows = [line.split() for line in captured.get().splitlines()[1:]]
    # Trials are in the order P8 s0, P16 s0, P8 s1, P16 s1.
    assert rows[0] == ["P8-G8-sqrt", "2", "completed", "512", "0.500", "256"]
    assert rows[1] == ["P16-G8-sqrt", "1", "completed,", "1", "not", "run", "512", "0.700", "256"]


def test_a_trial_that_goes_on_says_from_where(clock: Clock) -> None:
    first, second, third = small_plan([8], seeds=3).trials
    out = Console(file=io.StringIO(), force_terminal=False, width=100)
    display = Display(out, "sweep faults", [first, second, third], num_workers=3)
    with display, out.capture() as captured:
        for trial, attempt, samples in ((first, 1, 0), (second, 2, 192), (third, 3, 0)):
            display.started(trial, attempt)
            display.progressed(trial.trial_id, Progress(samples, None))
            display.progressed(trial.trial_id, Progress(samples + 64, None))
    assert captured.get().splitlines() == [
        "[0/3] P8-G8-sqrt seed 0: started",
        "[0/3] P8-G8-sqrt seed 1: started (attempt 2)",
        "[0/3] P8-G8-sqrt seed 1: goes on, 192 samples so far",
        "[0/3] P8-G8-sqrt seed 2: started (attempt 3)",
        "[0/3] P8-G8-sqrt seed 2: begins again, no checkpoint was left",
    ]
