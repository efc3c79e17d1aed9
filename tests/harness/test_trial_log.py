"""trial.log tells a trial's life in lines with times; it holds no library's chatter and no key."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from harness.jobs import Failed, describe_failure
from harness.run_dir import RunDir
from harness.trial import run_trial
from harness.trial_log import _ToFile, note, trial_log
from harness.types import TrialOutcome
from tests.harness.small import planned_trial, trial_dir

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")
KEY = "planted-key-0123456789"


def lines(folder: Path) -> list[str]:
    """The lines of the log without their times."""
    found = (folder / "trial.log").read_text().splitlines()
    assert all(TIME.match(line) for line in found)
    return [TIME.sub("", line, count=1) for line in found]


def test_it_tells_the_life_of_a_trial_in_order(tmp_path: Path) -> None:
    trial = planned_trial(budget_samples=64, execution__checkpoint_every_samples=32)
    folder = trial_dir(tmp_path)
    records = run_trial(trial, folder, tmp_path)
    for _ in range(4):  # an evaluation at 0, two updates of 16, an evaluation at 32
        next(records)
    next(records)  # the third update: the checkpoint at 32 is saved by now
    records.close()
    for _ in run_trial(trial, folder, tmp_path, attempt=2):
        pass
    told = [re.sub(r"process \d+", "process ...", line) for line in lines(folder)]
    told = [re.sub(r"samples: .*", "samples: ...", re.sub(r"[\d.]+ s$", "... s", line)) for line in told]
    assert told == [
        "attempt 1 starts, in process ...",
        "evaluated at 0 samples: ...",
        "evaluated at 32 samples: ...",
        "checkpoint at 32 samples",
        "attempt 2 starts, in process ...",
        "goes on from its checkpoint at 32 samples",
        "evaluated at 64 samples: ...",
        "checkpoint at 64 samples",
        "completed: the sample budget is used; 64 samples, ... s",
    ]


def test_it_has_our_events_what_libraries_warn_about_and_none_of_their_chatter(tmp_path: Path) -> None:
    ours, theirs = logging.getLogger("harness.part"), logging.getLogger("some.library")
    level = logging.getLogger("harness").level
    with trial_log(tmp_path):
        ours.debug("too much")
        ours.info("an event\nin two lines")
        ours.warning("a doubt of %d%%", 50)
        theirs.info("chatter")
        theirs.warning("old argument")
    ours.info("later")
    misfit = logging.LogRecord("some.library", logging.WARNING, "", 0, "does not %d fit", ("it",), None)
    _ToFile(tmp_path).handle(misfit)
    assert lines(tmp_path) == [
        "an event in two lines",
        "warning: a doubt of 50%",
        "warning: some.library: old argument",
        "warning: some.library: does not %d fit",
    ]
    assert logging.getLogger("harness").level == level


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    note(tmp_path / "none", "an event")
    (tmp_path / "trial.log").mkdir()
    note(tmp_path, "an event")


def test_a_failure_is_one_line_in_the_log_and_the_keys_of_the_machine_are_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("HF_TOKEN", "hf_planted-too")
    monkeypatch.setenv("SHORT_KEY", "x")  # no key: it may be part of any word
    failure = describe_failure("trial", RuntimeError(f"401 for {KEY}\nand hf_planted-too"))
    assert isinstance(failure, Failed) and failure.reason == "RuntimeError: 401 for *** and ***"
    run = RunDir(tmp_path)
    run.append_error(f"attempt 1\nTraceback (most recent call last):\nRuntimeError: 401 for {KEY}")
    run.write_outcome(TrialOutcome("failed", f"no {KEY}", 0, 0, 0, 0.0, 1))
    assert lines(tmp_path) == ["attempt 1: RuntimeError: 401 for ***"]
    outcome = run.outcome()
    assert outcome is not None and outcome.reason == "no ***"
    assert not any(KEY in path.read_text() for path in tmp_path.iterdir())
