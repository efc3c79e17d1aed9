"""A trial ends once its score held the target well past where it got there, and so it does after a kill."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from harness.arm_names import NOT_OF_THE_TRIAL, digest
from harness.run_dir import RunDir
from harness.stopping import held_from, is_well_past
from harness.tracking.jsonl import read_records
from harness.trial import run_trial
from tests.harness.small import planned_trial, trial_dir

STOPS: dict[str, Any] = {
    "evaluation__target": 0.7,
    "execution__checkpoint_every_samples": 64,
    "stop_past_target_frac": 0.5,
    "budget_samples": 480,
}
# At 0, 32, 64, ...: holds from 96 on, 1.5 x 96 = 144, and two evaluations past 96 are there at 160.
SCORES = [0.1, 0.75, 0.6, 0.7, 0.8, 0.9, *[0.95] * 10]


@pytest.fixture(autouse=True)
def _scripted_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is real but the score at each point of the grid."""

    def scripted(*arguments: Any) -> dict[str, float]:
        return {"eval/expected_score": SCORES[arguments[-1].round]}

    monkeypatch.setattr("harness.trial.evaluate", scripted)


def test_a_relapse_below_the_target_starts_the_count_anew() -> None:
    scores = [(0, 0.1), (100, 0.8), (200, 0.69), (300, 0.7), (400, 0.71), (500, 0.9)]
    assert held_from(scores, 0.7) == 300
    # 1.5 x 300 = 450, and two evaluations after 300: at 500, not at 450.
    assert [is_well_past(scores[:n], 0.7, 0.5, at) for n, at in ((4, 450), (5, 450), (6, 500))] == [False, False, True]
    # 2.0 x 300 = 600 samples are not there yet
    assert not is_well_past(scores, 0.7, 1.0, 500) and is_well_past(scores, 0.7, 1.0, 600)


def samples(root: Path, name: str) -> list[int]:
    records, _ = read_records(trial_dir(root, name) / "metrics.jsonl")
    return [record["samples_trained"] for record in records if record["kind"] == "eval"]


def test_a_trial_ends_there_and_says_why(tmp_path: Path) -> None:
    trial = planned_trial(**STOPS)
    list(run_trial(trial, trial_dir(tmp_path, "whole"), tmp_path))
    outcome = RunDir(trial_dir(tmp_path, "whole")).outcome()
    assert outcome is not None and (outcome.status, outcome.samples_trained) == ("completed", 160)
    assert outcome.reason == "the score held the target 0.7 from 96 samples on (stop_past_target_frac)"
    assert samples(tmp_path, "whole") == [0, 32, 64, 96, 128, 160]


@pytest.mark.parametrize("last", [96, 128, 160])
def test_a_killed_one_ends_at_the_same_place(tmp_path: Path, last: int) -> None:
    """Checkpoints are at 64 and 128: the evaluations that count lie before them, at them and after them."""
    trial = planned_trial(**STOPS)
    for record in (attempt := run_trial(trial, trial_dir(tmp_path), tmp_path)):
        if record.kind == "eval" and record.samples_trained == last:
            attempt.close()
            break
    assert RunDir(trial_dir(tmp_path)).outcome() is None
    list(run_trial(trial, trial_dir(tmp_path), tmp_path))
    outcome = RunDir(trial_dir(tmp_path)).outcome()
    assert outcome is not None and outcome.samples_trained == 160
    assert outcome.reason == "the score held the target 0.7 from 96 samples on (stop_past_target_frac)"


def test_without_the_rule_it_uses_its_budget_and_its_name_is_what_it_was(tmp_path: Path) -> None:
    trial = planned_trial(**STOPS | {"stop_past_target_frac": None})
    list(run_trial(trial, trial_dir(tmp_path), tmp_path))
    outcome = RunDir(trial_dir(tmp_path)).outcome()
    assert outcome is not None and (outcome.samples_trained, outcome.reason) == (480, "the sample budget is used")
    assert digest(trial.config) != digest(planned_trial(**STOPS).config)
    without = trial.config.model_dump(
        mode="json", exclude=NOT_OF_THE_TRIAL | {"stop_past_target_frac": True, "branch": True}
    )
    text = json.dumps(without, sort_keys=True, separators=(",", ":"))
    assert digest(trial.config) == hashlib.sha256(text.encode()).hexdigest()[:8]
