"""Trials as the W&B client sees them: records made by hand, kept and mirrored as a trial does it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import harness.tracking.wandb_sink as sink_module
from harness.plan import PlannedTrial
from harness.run_dir import RunDir
from harness.tracking.jsonl import JsonlSink
from harness.tracking.wandb_sink import WandbSink
from harness.types import StepRecord, TrialOutcome
from tests.harness.faults import small_plan

KEY = "0123456789abcdef" * 3
PLAN = small_plan([8], seeds=2, tracking={"project": "invariance", "tags": ["mine"]})
TRIAL = PLAN.trials[0]
STREAMING = small_plan([8], seeds=1, execution={"mode": "streaming"}, tracking={"project": "invariance"})
COMPLETED = TrialOutcome("completed", "the sample budget is used", 128, 128, 2, 3.5, 1)


@pytest.fixture
def own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client that has read nobody's settings, in a process state that no earlier failure has marked."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "client"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setattr(sink_module, "_online_failed", False)
    monkeypatch.setattr(sink_module, "_warned", False)
    yield
    import wandb

    wandb.teardown()


def train(samples: int) -> StepRecord:
    extra = {"step": samples // 64, "lr": 1e-3, "seconds": {"generate": 0.25, "train": 0.5}}
    return StepRecord("train", samples, samples, samples // 64, samples / 100, {"reward/mean": samples / 1000}, extra)


def evaluation(samples: int) -> StepRecord:
    return StepRecord("eval", samples, samples, samples // 64, samples / 100, {"eval/score": samples / 500})


def record(place: int) -> StepRecord:
    """The records of a trial in order: an evaluation at 0, then an update and an evaluation every 64 samples."""
    samples = 64 * ((place + 1) // 2)
    return train(samples) if place % 2 else evaluation(samples)


def trial_run(trial: PlannedTrial, sweep_dir: Path) -> RunDir:
    run = RunDir(sweep_dir / "trials" / trial.trial_id)
    run.path.mkdir(parents=True, exist_ok=True)
    return run


def attempt(
    trial: PlannedTrial, sweep_dir: Path, records: Iterable[StepRecord], outcome: TrialOutcome | None = None
) -> None:
    """One attempt at a trial: each record is kept first and mirrored then."""
    run = trial_run(trial, sweep_dir)
    truth, mirror = JsonlSink(run.metrics_path), WandbSink(trial, sweep_dir)
    for record in records:
        truth.write(record)
        mirror.write(record)
    if outcome is not None:
        run.write_outcome(outcome)
    truth.close(outcome)
    mirror.close(outcome)
