"""Norms over one window, the slope, and the noise scale with its traps."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.gradients import log_log_slope, noise_scale, rms_by_trial, two_batch_noise


def updates(rows: list[tuple[str, int, float, float]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["arm", "seed", "samples_before", "grad/actor_norm"])


def test_the_norm_is_a_root_mean_square_over_the_window() -> None:
    """sqrt((3^2 + 4^2) / 2) = 3.5355; the update at 200 lies beyond the window, the missing one is not 0."""
    table = updates([("a", 0, 0, 3.0), ("a", 0, 64, 4.0), ("a", 0, 128, math.nan), ("a", 0, 200, 100.0)])
    assert rms_by_trial(table, "grad/actor_norm", 200)["a", 0] == pytest.approx(math.sqrt(12.5))
    assert rms_by_trial(table, "grad/critic_norm", 200).empty


def test_pure_noise_has_slope_minus_one_half_and_pure_signal_none() -> None:
    batches = np.array([64, 256, 1024])
    assert log_log_slope(batches, np.sqrt(1000 / batches)[None]).value == pytest.approx(-0.5)
    assert log_log_slope(batches, np.full((2, 3), 7.0)).value == pytest.approx(0.0)


def test_the_slope_has_student_t_limits_over_seeds() -> None:
    """Slopes -0.4 and -0.5: mean -0.45, s / sqrt(2) = 0.05, t_1 = 12.706, half width 0.6353."""
    batches = np.array([100.0, 1000.0])
    norms = np.array([[1.0, 10**-0.4], [1.0, 10**-0.5]])
    interval = log_log_slope(batches, norms).interval()
    assert interval.estimate == pytest.approx(-0.45)
    assert interval.high == pytest.approx(-0.45 + 0.6353, abs=1e-4)


def test_signal_and_noise_from_two_batches() -> None:
    """b = 8 with 5 and B = 32 with 2 give 1, 32 and B_noise 32; B = 32 with 1 gives |G|^2 = -1/3: flagged."""
    signal_sq, trace = two_batch_noise(8, 5.0, 32, 2.0)
    assert (signal_sq, trace) == (pytest.approx(1.0), pytest.approx(32.0))
    assert noise_scale(np.array([trace]), np.array([signal_sq])).interval.estimate == pytest.approx(32)
    signal_sq, trace = two_batch_noise(8, 5.0, 32, 1.0)
    assert signal_sq == pytest.approx(-1 / 3)
    found = noise_scale(np.array([trace]), np.array([signal_sq]))
    assert found.interval.estimate is None
    assert found.flag == "not estimable: the mean |G|^2 is not positive"


def test_parts_are_averaged_before_they_are_divided() -> None:
    """(10 + 30) / (1 + 3) = 10; the mean of the ratios would be 10 too, that of (10/1, 30/1) 20."""
    assert noise_scale(np.array([10.0, 30.0]), np.array([1.0, 3.0])).interval.estimate == pytest.approx(10)
    assert noise_scale(np.array([10.0, 30.0]), np.array([0.1, 3.9])).interval.estimate == pytest.approx(10)


def test_a_signal_that_is_not_told_from_zero_has_no_finite_interval() -> None:
    found = noise_scale(np.array([10.0, 11.0, 12.0]), np.array([-1.0, 1.0, 2.0]))
    assert found.interval.estimate == pytest.approx(16.5)
    assert found.interval.low is None and found.flag is not None
    assert noise_scale(np.empty(0), np.empty(0)).flag == "not recorded"


def test_fiellers_interval_covers() -> None:
    """800 draws of five seeds: at least 0.95 less three standard errors, 0.927."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(800):
        interval = noise_scale(1000 + 100 * rng.standard_normal(5), 1 + 0.15 * rng.standard_normal(5)).interval
        covered += interval.low is None or (interval.high is not None and interval.low < 1000 < interval.high)
    assert covered / 800 >= 0.927
