"""Group-relative advantages, and the groups that carry none."""

from __future__ import annotations

import numpy as np
import pytest

from harness.algorithm.advantages import group_relative, zero_variance


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
    mixed = group_relative(np.array([[0.0] + [0.35] * 7], dtype=np.float32))
    assert np.abs(mixed).max() < 3


def test_a_group_of_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="group of one"):
        group_relative(np.array([[1.0]]))


def test_dead_groups_are_found() -> None:
    assert zero_variance(np.array([[0, 0], [0, 1], [1, 1]])).tolist() == [True, False, True]
