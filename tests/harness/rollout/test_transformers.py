"""The engine draws what the policy says, whatever is in flight with it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from harness.rollout.engine import Sampling
from harness.rollout.transformers import TransformersEngine
from harness.training.batch import token_batch
from harness.training.packing import response_logprobs
from harness.types import Prompt, RolloutGroup
from tests.harness.small import TOKENIZER, model

PROMPTS = [Prompt(4, "12="), Prompt(9, "40771="), Prompt(5, "3=")]
SAMPLING = Sampling(temperature=0.6, max_response_tokens=5, seed=1, purpose="train", num_sampled=3, num_greedy=1)


def tokens_of(groups: list[RolloutGroup]) -> list[list[int]]:
    return [rollout.token_ids_T.tolist() for group in groups for rollout in group.rollouts]


def all_logprobs(groups: list[RolloutGroup], temperature: float) -> np.ndarray:
    return np.concatenate(response_logprobs(model(), 64, temperature, 1024, token_batch(groups)))


@pytest.mark.parametrize("gen_batch", [1, 3, 5, 12])
def test_what_is_sampled_does_not_depend_on_what_is_in_flight(gen_batch: int) -> None:
    together = TransformersEngine(model(), TOKENIZER).generate(PROMPTS, SAMPLING)
    in_waves = TransformersEngine(model(), TOKENIZER, gen_batch).generate(PROMPTS, SAMPLING)
    assert tokens_of(in_waves) == tokens_of(together)


def test_nor_on_the_order_or_number_of_prompts() -> None:
    engine = TransformersEngine(model(), TOKENIZER)
    both = engine.generate(PROMPTS, SAMPLING)
    alone = engine.generate(PROMPTS[2:], SAMPLING)
    assert tokens_of(both[2:]) == tokens_of(alone)


def test_behaviour_logprobs_are_the_trainers_at_the_same_temperature() -> None:
    groups = TransformersEngine(model(), TOKENIZER).generate(PROMPTS, SAMPLING)
    behaviour = np.concatenate([rollout.behaviour_logprobs_T for group in groups for rollout in group.rollouts])
    np.testing.assert_allclose(all_logprobs(groups, 0.6), behaviour, atol=1e-5)
    assert np.abs(all_logprobs(groups, 1.0) - behaviour).max() > 0.1  # the test can fail


def test_greedy_responses_take_the_most_likely_token_and_do_not_depend_on_the_seed() -> None:
    engine = TransformersEngine(model(), TOKENIZER)
    greedy = [group.rollouts[-1] for group in engine.generate(PROMPTS, SAMPLING)]
    other = Sampling(temperature=1.0, max_response_tokens=5, seed=77, purpose="x", num_sampled=0, num_greedy=1)
    again = [group.rollouts[0] for group in engine.generate(PROMPTS, other)]
    assert [rollout.token_ids_T.tolist() for rollout in greedy] == [rollout.token_ids_T.tolist() for rollout in again]


def test_responses_end_at_the_end_token_or_are_marked_truncated() -> None:
    sampling = Sampling(temperature=1.0, max_response_tokens=5, seed=0, purpose="train", num_sampled=200)
    rollouts = TransformersEngine(model(), TOKENIZER).generate(PROMPTS[:1], sampling)[0].rollouts
    assert {rollout.truncated for rollout in rollouts} == {True, False}
    for rollout in rollouts:
        ends = np.flatnonzero(rollout.token_ids_T == TOKENIZER.eos_token_id).tolist()
        assert ends == ([] if rollout.truncated else [len(rollout.token_ids_T) - 1])
        assert not rollout.truncated or len(rollout.token_ids_T) == 5


def test_first_tokens_follow_the_policys_distribution() -> None:
    """Chi-square over 6,000 draws; a shift of any token's probability from .077 to .095 is found 99% of the time."""
    sampling = Sampling(temperature=0.6, max_response_tokens=1, seed=0, purpose="train", num_sampled=6000)
    group = TransformersEngine(model(), TOKENIZER).generate(PROMPTS[:1], sampling)[0]
    counts = Counter(int(rollout.token_ids_T[0]) for rollout in group.rollouts)
    probability = {int(r.token_ids_T[0]): float(np.exp(r.behaviour_logprobs_T[0])) for r in group.rollouts}
    assert sum(probability.values()) == pytest.approx(1, abs=1e-4)  # every token was drawn
    observed = [counts[token] for token in probability]
    expected = np.array(list(probability.values()))
    assert stats.chisquare(observed, expected / expected.sum() * 6000).pvalue > 0.01


def test_two_seeds_and_two_rounds_differ() -> None:
    engine = TransformersEngine(model(), TOKENIZER)
    seen = [
        tokens_of(engine.generate(PROMPTS, Sampling(1.0, 5, seed, "train", round, num_sampled=4)))
        for seed, round in [(0, 0), (1, 0), (0, 1)]
    ]
    assert seen[0] != seen[1] and seen[0] != seen[2]
