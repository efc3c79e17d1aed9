"""Whole trials in words: the loop of every trial with a model from a folder, and scores in processes."""

from __future__ import annotations

import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from harness.models import character_tokenizer
from harness.rewards import ScorerProcesses
from harness.run_dir import RunDir
from harness.trial import run_trial
from harness.types import StepRecord
from tests.harness.fragile import Fragile
from tests.harness.small import planned_trial, trial_dir

SETTINGS: dict[str, Any] = {
    "sampling__max_response_tokens": 6,
    "evaluation__metric": "eval/score",
    "evaluation__num_prompts": 4,
    "evaluation__samples_per_prompt": 2,
    "budget_samples": 32,
}
GYM = {
    "name": "reasoning_gym",
    "generator": "chain_sum",
    "parameters": {"max_terms": 2, "max_digits": 1},
    "held_out": 8,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small GPT-2 that knows digits, and the letters of a question."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = character_tokenizer("0123456789+-=.: abcdefghijklmnopqrstuvwxyzS")
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=128, n_embd=32, n_layer=1, n_head=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def run(root: Path, name: str = "trial", **settings: Any) -> list[StepRecord]:
    return list(run_trial(planned_trial(**SETTINGS | settings), trial_dir(root, name), root))


def test_a_trial_on_a_generator_repeats_bit_for_bit_and_leaves_no_process(tmp_path: Path, model: str) -> None:
    records = run(tmp_path, model__name=model, task=GYM)
    train = [record.metrics for record in records if record.kind == "train"]
    assert [record.samples_trained for record in records if record.kind == "train"] == [16, 32]
    # One character in 45 is the one digit of the answer: some of 16 responses of up to 6 have it, and all would hardly.
    assert 0 < train[0]["reward/mean"] < 0.5 and train[0]["reward/zero_variance_frac"] < 1
    assert (train[0]["reward/errors"], train[0]["reward/timeouts"]) == (0, 0)
    scores = [record.metrics for record in records if record.kind == "eval"]
    assert "eval/expected_score" not in scores[0] and scores[0]["eval/errors"] == 0
    assert run(tmp_path, "again", model__name=model, task=GYM)[-1].metrics == records[-1].metrics
    assert not [child for child in multiprocessing.active_children() if "pebble" in child.name]


def test_what_raises_and_what_hangs_is_in_the_records_and_the_trial_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "harness.parts.make_scorer", lambda task, config, processes: ScorerProcesses(partial(Fragile, 3), 0.2, 2)
    )
    trial = planned_trial(batch__group_size=2, evaluation__num_prompts=2, budget_samples=8)
    start, update = run_trial(trial, trial_dir(tmp_path), tmp_path)
    # Held-out questions 0 and 1 have a sampled and a greedy response each, training questions 0 to 3 two sampled ones.
    assert (start.metrics["eval/errors"], start.metrics["eval/timeouts"], start.metrics["eval/score"]) == (2, 2, 0)
    assert (update.metrics["reward/errors"], update.metrics["reward/timeouts"]) == (2, 2)
    outcome = RunDir(trial_dir(tmp_path)).outcome()
    assert outcome is not None and (outcome.status, outcome.samples_trained) == ("completed", 8)
    assert sorted(record.message for record in caplog.records if record.name == "harness.rewards") == [
        "the score of a response to prompt 0 counts as 0: ZeroDivisionError: a rule with a fault",
        "the score of a response to prompt 1 counts as 0: took longer than task.score_limit_s 0.2",
    ]
