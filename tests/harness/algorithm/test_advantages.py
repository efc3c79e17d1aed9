"""Advantages by hand: groups and those that carry none, greedy baselines, values, whitening."""

from __future__ import annotations

import numpy as np
import pytest

from harness.algorithm.advantages import (
    against_greedy,
    explained_variance,
    gae,
    group_relative,
    leave_one_out,
    on_last_token,
    whiten,
    zero_variance,
)


def test_worked_example_with_either_divisor() -> None:
    # rewards 1, 0, 0, 0: mean 1/4; variance with n-1: (9/16 + 3/16)/3 = 1/4, with n: 3/16.
    rewards = np.array([[1.0, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(group_relative(rewards, ddof=1, epsilon=0.0), [[1.5, -0.5, -0.5, -0.5]])
    np.testing.assert_allclose(group_relative(rewards, ddof=0, epsilon=0.0), np.array([[3, -1, -1, -1]]) / np.sqrt(3))
    np.testing.assert_allclose(group_relative(rewards, std="none"), [[0.75, -0.25, -0.25, -0.25]])


def test_equal_rewards_give_exactly_zero_whatever_the_other_groups_hold() -> None:
    assert (group_relative(np.array([[0.0, 0.0], [1.0, 1.0]])) == 0).all()
    # The mean of seven fp32 .35 is not .35: without care the residue would be divided by epsilon.
    residue = np.full((1, 7), 0.35, dtype=np.float32)
    assert (group_relative(residue, epsilon=0.0) == 0).all()
    assert (leave_one_out(residue) == 0).all()
    mixed = group_relative(np.array([[0.0] + [0.35] * 7], dtype=np.float32))
    assert np.abs(mixed).max() < 3


@pytest.mark.parametrize("advantage", [group_relative, leave_one_out])
def test_a_group_of_one_is_an_error(advantage: object) -> None:
    with pytest.raises(ValueError, match="group of one"):
        advantage(np.array([[1.0]]))


def test_dead_groups_are_found() -> None:
    assert zero_variance(np.array([[0, 0], [0, 1], [1, 1]])).tolist() == [True, False, True]


def test_leave_one_out_is_each_reward_less_the_mean_of_the_others() -> None:
    # 3 - (1 + 2)/2 = 1.5;  1 - (3 + 2)/2 = -1.5;  2 - (3 + 1)/2 = 0
    np.testing.assert_allclose(leave_one_out(np.array([[3.0, 1.0, 2.0]])), [[1.5, -1.5, 0.0]])


def test_a_greedy_baseline_works_for_a_group_of_one() -> None:
    assert against_greedy(np.array([[1.0], [0.0]]), np.array([0.0, 0.0])).tolist() == [[1.0], [0.0]]


def test_gae_by_hand() -> None:
    # delta = [0, 0, 1 - .5]: A_3 = .5, A_2 = .95 * .5, A_1 = .95^2 * .5
    np.testing.assert_allclose(gae(np.array([0, 0, 1.0]), np.full(3, 0.5), np.array([3])), [0.45125, 0.475, 0.5])
    # gamma .5, lambda 1: A = discounted return - V; returns of [0, 1]: [.5, 1]
    np.testing.assert_allclose(gae(np.array([0, 1.0]), np.array([0.2, 0.4]), np.array([2]), 0.5, 1.0), [0.3, 0.6])
    # lambda 0: one step only. delta = [V_2 - V_1, 1 - V_2]
    np.testing.assert_allclose(gae(np.array([0, 1.0]), np.array([0.2, 0.4]), np.array([2]), 1.0, 0.0), [0.2, 0.6])


def test_gae_of_a_ragged_batch_is_that_of_each_response_alone() -> None:
    random = np.random.default_rng(0)
    lengths = np.array([3, 1, 5])
    rewards, values = random.normal(size=9), random.normal(size=9)
    alone = [
        gae(r, v, np.array([len(r)])) for r, v in zip(np.split(rewards, [3, 4]), np.split(values, [3, 4]), strict=True)
    ]
    np.testing.assert_allclose(gae(rewards, values, lengths), np.concatenate(alone))


def test_the_reward_sits_on_the_last_generated_token() -> None:
    # A reward behind the end would leave -V everywhere: a right answer would be punished.
    rewards = on_last_token(np.array([1.0, 1.0]), np.array([2, 3]))
    assert rewards.tolist() == [0, 1, 0, 0, 1]
    assert (gae(rewards, np.full(5, 0.4), np.array([2, 3])) > 0).all()


def test_whitening() -> None:
    np.testing.assert_allclose(whiten(np.array([1.0, 5.0])), [-1.0, 1.0])
    # Without the shift the mean is neither taken away nor added back.
    np.testing.assert_allclose(whiten(np.array([0.0, 4.0]), shift_mean=False), [0.0, 2.0])
    # No spread, nothing to divide by: fp32 residue of a mean must not be blown up.
    residue = np.full(7, 0.35, dtype=np.float32)
    assert (whiten(residue) == 0).all()
    assert (whiten(residue, shift_mean=False) == residue).all()


def test_explained_variance_of_equal_targets_is_not_a_number() -> None:
    assert explained_variance(np.array([0.1, 0.3]), np.array([1.0, 1.0])) is None
