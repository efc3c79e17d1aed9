"""Every algorithm from its configuration: what it asks for, how it judges, what it remembers."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from harness.algorithm.algorithm import Algorithm, Credit, Feedback, Needs
from harness.algorithm.config import AlgorithmConfig
from harness.algorithm.registry import ALGORITHMS, make_algorithm
from harness.types import TokenBatch

# Two prompts of two responses with 1, 2, 1 and 2 tokens; the first of each is right.
LENGTHS = np.array([1, 2, 1, 2])
REWARDS = np.array([[1.0, 0.0], [1.0, 0.0]])


def algorithm(name: str, **settings: Any) -> Algorithm:
    return make_algorithm(TypeAdapter(AlgorithmConfig).validate_python({"name": name, **settings}))


def judged(made: Algorithm, rewards_PG: np.ndarray = REWARDS, **given: Any) -> Credit:
    tokens = TokenBatch(
        prompt_ids=(np.array([3]), np.array([4])),
        prompt_of_response_S=np.array([0, 0, 1, 1]),
        lengths_S=LENGTHS,
        token_ids_N=np.arange(6),
        behaviour_logprobs_N=np.full(6, -1.0),
    )
    return made.credit(Feedback(rewards_PG, tokens, **given))


def test_every_configuration_has_its_algorithm_and_its_file() -> None:
    names = [kind.model_fields["name"].default for kind in get_args(get_args(AlgorithmConfig)[0])]
    assert names == list(ALGORITHMS)
    for name, kind in ALGORITHMS.items():
        assert kind.__module__ == f"harness.algorithm.{name}"


@pytest.mark.parametrize(
    ("name", "settings", "expected_S"),
    [
        # mean 1/2, std with n - 1 of {1, 0}: sqrt(1/2)
        ("grpo", {"std_epsilon": 0.0}, [0.5 * 2**0.5, -0.5 * 2**0.5]),
        ("dr_grpo", {"constant_tokens": 4}, [0.5, -0.5]),
        ("dapo", {"std_ddof": 0, "std_epsilon": 0.0}, [1.0, -1.0]),
        ("gspo", {"std_ddof": 0, "std_epsilon": 0.0}, [1.0, -1.0]),
        ("cispo", {"std_ddof": 0, "std_epsilon": 0.0}, [1.0, -1.0]),
        ("rloo", {}, [1.0, -1.0]),
    ],
)
def test_responses_against_their_group(name: str, settings: dict[str, Any], expected_S: list[float]) -> None:
    credit = judged(algorithm(name, **settings))
    np.testing.assert_allclose(credit.advantages_N, np.repeat(expected_S * 2, LENGTHS))
    assert credit.value_targets_N is None


def test_remax_against_the_greedy_response() -> None:
    made = algorithm("remax")
    assert made.needs == Needs(greedy_responses=1)
    credit = judged(made, greedy_rewards_P=np.array([1.0, 0.5]))
    np.testing.assert_allclose(credit.advantages_N, np.repeat([0.0, -1.0, 0.5, -0.5], LENGTHS))


def test_reinforce_against_what_came_before() -> None:
    # window 2: baselines 0; 1; (1/2 * 1 + 0)/1.5 = 1/3; (1/4 + 0 + 1)/1.75 = 5/7
    credit = judged(algorithm("reinforce", baseline_samples=2.0))
    np.testing.assert_allclose(credit.advantages_N, np.repeat([1.0, -1.0, 2 / 3, -5 / 7], LENGTHS))


def test_ppo_by_generalised_advantages() -> None:
    # V = .5 throughout, gamma 1, lambda .95. Right, 1 token: .5. Wrong, 2 tokens: [-.475, -.5]. Targets A + V.
    made = algorithm("ppo", whiten="none")
    assert made.needs == Needs(critic=True)
    credit = judged(made, values_N=np.full(6, 0.5))
    np.testing.assert_allclose(credit.advantages_N, [0.5, -0.475, -0.5] * 2)
    np.testing.assert_allclose(credit.value_targets_N, [1.0, 0.025, 0.0] * 2)
    # Whitening leaves the targets alone.
    whitened = judged(algorithm("ppo"), values_N=np.full(6, 0.5))
    assert whitened.advantages_N.mean() == pytest.approx(0) and whitened.advantages_N.std() == pytest.approx(1)
    np.testing.assert_allclose(whitened.value_targets_N, credit.value_targets_N)
    scaled = judged(algorithm("ppo", whiten="std"), values_N=np.full(6, 0.5))
    np.testing.assert_allclose(scaled.advantages_N, credit.advantages_N / credit.advantages_N.std())


def test_the_kl_in_the_reward_is_paid_by_every_token() -> None:
    # behaviour - ref = -1 - (-2) = 1 a token, weight .1, V = 0, lambda 1: returns of [-.1 + 1] and [-.1, -.1].
    made = algorithm("ppo", whiten="none", gae_lambda=1.0, kl_reward_coef=0.1)
    assert made.needs == Needs(critic=True, reference=True)
    credit = judged(made, values_N=np.zeros(6), ref_logprobs_N=np.full(6, -2.0))
    np.testing.assert_allclose(credit.advantages_N, [0.9, -0.2, -0.1] * 2)


def test_ppo_ewma_whitens_by_moving_moments() -> None:
    made = algorithm("ppo_ewma", moments_samples=100.0)
    assert made.needs == Needs(critic=True, proximal_samples=512.0)
    first = judged(made, values_N=np.zeros(6)).advantages_N
    # The same advantages times ten are wider than the moments that also hold the first ones.
    second = judged(made, REWARDS * 10, values_N=np.zeros(6)).advantages_N
    assert second.std() > first.std() * 1.2


def test_dynamic_sampling_is_a_knob_of_dapo() -> None:
    assert algorithm("dapo").needs.refill_rounds == 4
    assert algorithm("dapo", refill_rounds=0).needs.refill_rounds == 0
    assert algorithm("dapo", dynamic_sampling=False).needs.refill_rounds is None


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_reference_is_asked_for_by_its_weight(name: str) -> None:
    assert not algorithm(name).needs.reference
    assert algorithm(name, kl_coef=0.1).needs.reference


@pytest.mark.parametrize("name", ["reinforce", "ppo_ewma"])
def test_a_memory_goes_on_where_it_was_taken(name: str) -> None:
    one, other = algorithm(name), algorithm(name)
    judged(one, values_N=np.zeros(6))
    other.load_state(one.state())
    again = [judged(made, REWARDS * 10, values_N=np.zeros(6)).advantages_N.tolist() for made in (one, other)]
    assert again[0] == again[1]
    fresh = judged(algorithm(name), REWARDS * 10, values_N=np.zeros(6)).advantages_N.tolist()
    assert fresh != again[0]


def test_the_denominators_of_the_variants() -> None:
    assert algorithm("dr_grpo", constant_tokens=4).loss_weights(LENGTHS).tolist() == [1 / 16] * 6
    assert algorithm("dapo").loss_weights(LENGTHS) == pytest.approx([1 / 6] * 6)
    assert algorithm("gspo").loss_weights(LENGTHS) == pytest.approx([1 / 4, 1 / 8, 1 / 8] * 2)


def test_a_variant_refuses_what_it_is_not() -> None:
    with pytest.raises(ValidationError):
        algorithm("dr_grpo", advantage_std="std")
    with pytest.raises(ValidationError):
        algorithm("rloo", advantage_std="none")
