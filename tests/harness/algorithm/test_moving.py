"""Averages that decay by the sample: the batch in which samples come changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from harness.algorithm.moving import MovingBaseline, MovingMoments


def rewards_of(number: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 2, number).astype(float)


@pytest.mark.parametrize("batch", [1, 4, 12, 60])
def test_the_baseline_of_a_sample_does_not_depend_on_the_batch(batch: int) -> None:
    whole = MovingBaseline(window_samples=8).baselines(rewards_of(60))
    moving = MovingBaseline(window_samples=8)
    parts = [moving.baselines(rewards) for rewards in np.split(rewards_of(60), 60 // batch)]
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_the_baseline_follows_a_change_within_its_window() -> None:
    moving = MovingBaseline(window_samples=10)
    moving.baselines(np.zeros(1000))
    after = moving.baselines(np.ones(31))
    # d^10 = .35 and d^30 = .042 of the old reward are left.
    assert after[10] == pytest.approx(1 - 0.9**10, abs=1e-6)
    assert after[30] == pytest.approx(1 - 0.9**30, abs=1e-6)


def test_the_own_reward_is_not_in_the_baseline() -> None:
    base = MovingBaseline(window_samples=4).baselines(np.array([1.0, 0.0, 0.0]))
    other = MovingBaseline(window_samples=4).baselines(np.array([1.0, 0.0, 9.0]))
    assert base[2] == other[2]


@pytest.mark.parametrize("batch", [1, 5, 20])
def test_moments_after_the_same_samples_do_not_depend_on_the_batch(batch: int) -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(1, 5, 20)
    responses = [random.normal(2.0, 3.0, length) for length in lengths]
    states = []
    for size in (batch, 20):
        moving = MovingMoments(window_samples=7)
        for first in range(0, 20, size):
            moving.normalise(np.concatenate(responses[first : first + size]), lengths[first : first + size])
        states.append(moving.state())
    assert states[0] == pytest.approx(states[1])


def test_moments_by_hand() -> None:
    # d = 1/2. Samples [2], [4], weights 1/2, 1: mean 10/3, mean square (2 + 16)/1.5 = 12, variance 12 - 100/9 = 8/9.
    moving = MovingMoments(window_samples=2)
    moving.normalise(np.array([2.0]), np.array([1]))
    assert moving.normalise(np.array([4.0]), np.array([1]))[0] == pytest.approx((4 - 10 / 3) / np.sqrt(8 / 9))


def test_without_spread_moments_only_shift() -> None:
    moving = MovingMoments(window_samples=100)
    assert np.abs(moving.normalise(np.full(50, 0.35), np.full(10, 5))).max() < 1e-12


def test_a_state_goes_on_where_it_was_taken() -> None:
    first, second = MovingBaseline(8), MovingBaseline(8)
    first.baselines(rewards_of(20))
    second.load_state(first.state())
    assert second.baselines(rewards_of(5)).tolist() == first.baselines(rewards_of(5)).tolist()
    one, other = MovingMoments(8), MovingMoments(8)
    one.normalise(rewards_of(20), np.full(10, 2))
    other.load_state(one.state())
    again = rewards_of(4), np.full(2, 2)
    assert other.normalise(*again).tolist() == one.normalise(*again).tolist()
