"""Every algorithm learns the small task, and unlearns it when the sign of its advantages is flipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.algorithm.algorithm import Credit, Feedback
from harness.algorithm.registry import ALGORITHMS, make_algorithm
from harness.config import AlgorithmConfig
from harness.trial import run_trial
from tests.harness.small import LEARNS, planned_trial, trial_dir

SAMPLES = 1536
FLOOR = 0.08


class Flipped:
    """An algorithm that judges everything the other way round."""

    def __init__(self, config: AlgorithmConfig) -> None:
        self.inner = make_algorithm(config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def credit(self, feedback: Feedback) -> Credit:
        credit = self.inner.credit(feedback)
        return replace(credit, advantages_N=-credit.advantages_N)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, so that they share one warm start."""
    return tmp_path_factory.mktemp("learning")


def scores(name: str, root: Path, samples: int, suffix: str) -> tuple[float, float]:
    """Expected score before and after so many samples, in updates of 64."""
    own = {"dr_grpo": {"constant_tokens": 3}, "dapo": {"refill_rounds": 1}}.get(name, {})
    group_size = 1 if name in ("remax", "reinforce", "ppo", "ppo_ewma") else 8
    trial = planned_trial(
        **LEARNS,
        algorithm={"name": name, **own},
        batch={"num_prompts": 64 // group_size, "group_size": group_size},
        evaluation__every_samples=samples,
        budget_samples=samples,
    )
    records = list(run_trial(trial, trial_dir(root, f"{name}-{suffix}"), root))
    start, end = (record.metrics["eval/expected_score"] for record in records if record.kind == "eval")
    return start, end


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_raises_the_score(name: str, root: Path) -> None:
    start, end = scores(name, root, SAMPLES, "right")
    assert end > start + FLOOR


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_opposite_advantage_does_not(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.parts.make_algorithm", Flipped)
    start, end = scores(name, root, SAMPLES // 2, "flipped")
    assert end < start
