"""The mirrors beside W&B: TensorBoard's file holds each record once, and no mirror stops a trial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harness.__main__ import main
from harness.plan import PlannedTrial
from harness.tracking import tensorboard as tensorboard_module
from harness.tracking.jsonl import JsonlSink
from harness.tracking.mirrors import open_mirrors
from harness.types import StepRecord
from tests.harness.faults import small_plan
from tests.harness.wandb_client import COMPLETED, record, trial_run

TRIAL = small_plan([8], seeds=1, tracking={"wandb": False, "tensorboard": True}).trials[0]


def attempt(sweep_dir: Path, records: list[StepRecord], trial: PlannedTrial = TRIAL) -> None:
    truth = JsonlSink(trial_run(trial, sweep_dir).metrics_path)
    mirrors = open_mirrors(trial, sweep_dir, {})
    for each in records:
        truth.write(each)
        for mirror in mirrors:
            mirror.write(each)
    truth.close()
    for mirror in mirrors:
        mirror.close(COMPLETED)


def shown(sweep_dir: Path, name: str) -> list[tuple[int, float]]:
    [file] = (sweep_dir / "trials" / TRIAL.trial_id / "tensorboard").iterdir()
    events = EventAccumulator(str(file), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    events.Reload()
    return [(event.step, pytest.approx(event.value)) for event in events.Scalars(name)]


def test_tensorboard_has_every_number_over_samples_trained_once_also_after_a_kill(tmp_path: Path) -> None:
    attempt(tmp_path, [record(place) for place in range(5)])
    [file] = (tmp_path / "trials" / TRIAL.trial_id / "tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])  # as a kill leaves it
    attempt(tmp_path, [record(place) for place in range(3, 7)])
    assert shown(tmp_path, "eval/score") == [(0, 0.0), (64, 0.128), (128, 0.256), (192, 0.384)]
    assert shown(tmp_path, "reward/mean") == [(64, 0.064), (128, 0.128), (192, 0.192)]
    assert shown(tmp_path, "seconds/generate") == [(n, 0.25) for n in (64, 128, 192)]


def test_tensorboard_shows_the_last_attempt_of_a_trial_that_does_not_repeat_itself(tmp_path: Path) -> None:
    """Its viewer forgets what an event file holds of later steps than the one that a new file begins at."""
    tracking = {"wandb": False, "tensorboard": True}
    [trial] = small_plan([8], seeds=1, tracking=tracking, execution={"mode": "streaming"}).trials
    attempt(tmp_path, [record(place) for place in range(7)], trial)
    again = [replace(record(place), metrics={"eval/score": 0.9, "reward/mean": 0.8}) for place in range(3, 6)]
    attempt(tmp_path, again, trial)
    folder = tmp_path / "trials" / trial.trial_id / "tensorboard"
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    seen = [(event.step, pytest.approx(event.value)) for event in events.Scalars("eval/score")]
    # Updates have both names here, evaluations too.
    assert seen == [(0, 0.0), (64, 0.128), (128, 0.9), (128, 0.9), (192, 0.9)]


def test_a_mirror_that_fails_is_left_behind_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Any, content: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensorboard_module.TensorBoardSink, "_add", full)
    attempt(tmp_path, [record(place) for place in range(5)])
    [said] = [entry.getMessage() for entry in caplog.records if entry.name.startswith("harness")]
    assert said.startswith("TensorBoard: OSError: ") and said.endswith("metrics.jsonl has every record.")


def test_without_the_package_a_sweep_that_asks_for_it_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "{sweep: demo, question: 'Why?', optimizer: {lr: 1.0e-3}, budget_samples: 512, seeds: 1, tracking: {tensorboard: true},"
        " reference: {batch.num_prompts: 8}, arms: [{batch.num_prompts: 8}]}"
    )
    assert main(["plan", str(path), "--results", str(tmp_path)]) == 0
    monkeypatch.setattr(tensorboard_module.importlib.util, "find_spec", lambda name: None)
    assert main(["plan", str(path), "--results", str(tmp_path)]) == 3
    assert "pip install 'batch-invariance[tensorboard]'" in capsys.readouterr().err
