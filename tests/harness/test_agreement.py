"""An engine that samples from other weights than the trainer's is an alarm, not a drift."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.errors import InputError
from harness.rollout.transformers import TransformersEngine
from harness.tracking.jsonl import read_records
from harness.trial import run_trial
from tests.harness.small import LEARNS, planned_trial, trial_dir


class Deaf(TransformersEngine):
    """Has weights of its own, and says it took up the new ones."""

    def __init__(self, model: Any, *arguments: Any) -> None:
        super().__init__(copy.deepcopy(model), *arguments)

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self.weights_version = version


class Skipped(TransformersEngine):
    """Was never told of new weights, though it has them."""

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        pass


def gaps(root: Path) -> list[float]:
    records, _ = read_records(trial_dir(root) / "metrics.jsonl")
    return [record["metrics"]["policy/logprob_gap_mean"] for record in records if record["kind"] == "train"]


def test_weights_that_never_arrive_fail_the_trial_at_the_first_update_that_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.parts.TransformersEngine", Deaf)
    trial = planned_trial(**LEARNS, optimizer__lr=3e-4)
    with pytest.raises(
        InputError, match=r"execution.max_logprob_gap: 0.01; in update 2 .* transformers samples from other weights"
    ):
        list(run_trial(trial, trial_dir(tmp_path), tmp_path))
    before, after = gaps(tmp_path)  # the record that shows it is kept
    assert before < 1e-5 and after > 0.01


def test_the_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.parts.TransformersEngine", Deaf)
    trial = planned_trial(**LEARNS, optimizer__lr=1e-3, execution__max_logprob_gap=10.0)
    list(run_trial(trial, trial_dir(tmp_path), tmp_path))
    found = gaps(tmp_path)
    assert len(found) == 8 and max(found[:4]) < max(found[4:])  # and what it lets through drifts on


def test_responses_of_other_weights_than_the_update_asks_for_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.parts.TransformersEngine", Skipped)
    with pytest.raises(RuntimeError, match=r"update 2 trained on responses of weights \[0\], not 1"):
        list(run_trial(planned_trial(), trial_dir(tmp_path), tmp_path))
