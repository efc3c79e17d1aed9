"""r_N and its interval: values worked by hand, and bounds where seeds are censored."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from analysis.penalty import (
    Interval,
    LogSample,
    Mean,
    Spread,
    log_mean,
    log_ratio,
    mean_of,
    pooled_spread,
    update_ratio,
)

REFERENCE = LogSample(np.log([1000.0, 1000 * math.exp(0.1), 1000 * math.exp(-0.1)]))
ARM = LogSample(np.log([1500.0, 1500 * math.exp(0.2), 1500 * math.exp(-0.2)]))


def test_a_ratio_worked_by_hand() -> None:
    """s^2 = (2 * 0.1^2 + 2 * 0.2^2) / 4 = 0.025; t_4 = 2.7764; half width 2.7764 * sqrt(0.025 * 2 / 3) = 0.35844."""
    spread = pooled_spread([REFERENCE, ARM])
    assert spread.sd == pytest.approx(math.sqrt(0.025))
    assert spread.df == 4
    ratio = log_ratio(ARM, REFERENCE, spread)
    assert ratio.estimate == pytest.approx(math.log(1.5))
    assert ratio.high is not None and ratio.estimate is not None
    assert ratio.high - ratio.estimate == pytest.approx(0.35844, abs=1e-5)


def test_dividing_by_r_q_adds_its_variance() -> None:
    """v = 0.016667 + 0.01; df = 0.026667^2 / (0.016667^2 / 4 + 0.01^2 / 4) = 7.529; t = 2.3313; half 0.38070."""
    ratio = log_ratio(ARM, REFERENCE, pooled_spread([REFERENCE, ARM]), divisor=Mean(math.log(2), 0.01, 4))
    assert ratio.estimate == pytest.approx(math.log(0.75))
    assert ratio.high is not None and ratio.estimate is not None
    assert ratio.high - ratio.estimate == pytest.approx(0.38070, abs=2e-4)


def test_one_seed_gives_an_estimate_without_limits() -> None:
    one = LogSample(np.array([math.log(1000.0)])), LogSample(np.array([math.log(1200.0)]))
    assert log_ratio(one[1], one[0], pooled_spread(one)) == Interval(pytest.approx(math.log(1.2)))
    assert log_ratio(LogSample(np.empty(0), np.log([5000.0])), one[0], pooled_spread(one)) == Interval(bound="lower")


def test_a_clock_read_once_leaves_r_T_without_limits() -> None:
    ratio = log_ratio(ARM, REFERENCE, pooled_spread([REFERENCE, ARM]), divisor=mean_of(np.array([0.5])))
    assert ratio == Interval(pytest.approx(math.log(1.5) - 0.5))


def test_a_censored_arm_is_a_lower_bound() -> None:
    """All three seeds beyond 5000: the limit lies below log 5 by the sampling error, and only it is known."""
    spread = Spread(0.1, 8)
    ratio = log_ratio(LogSample(np.empty(0), np.log([5000.0] * 3)), REFERENCE, spread)
    assert ratio.estimate is None and ratio.high is None and ratio.bound == "lower"
    assert ratio.low is not None
    assert math.log(5) - 2.306 * 0.1 * math.sqrt(2 / 3) - 0.05 < ratio.low < math.log(5)


def test_bounds_tell_less_than_values_and_more_than_nothing() -> None:
    """Replacing a value by the bound below it widens the interval; dropping the seed would overstate speed."""
    spread = Spread(0.1, 8)
    values = np.log([1400.0, 1500.0, 1600.0])
    full = log_ratio(LogSample(values), REFERENCE, spread).low
    bounded = log_ratio(LogSample(values[:2], values[2:]), REFERENCE, spread).low
    dropped = log_ratio(LogSample(values[:2]), REFERENCE, spread).low
    assert full is not None and bounded is not None and dropped is not None
    assert bounded > dropped
    assert bounded == pytest.approx(full, abs=0.03)


def test_a_censored_reference_is_an_upper_bound_and_two_censored_arms_tell_nothing() -> None:
    spread = Spread(0.1, 8)
    censored = LogSample(np.log([1000.0, 1000.0]), np.log([1000.0]))
    ratio = log_ratio(ARM, censored, spread)
    assert ratio.bound == "upper" and ratio.low is None and ratio.high is not None
    mirrored = log_ratio(censored, ARM, spread).low
    assert mirrored == pytest.approx(-ratio.high)
    assert log_ratio(censored, censored, spread) == Interval()
    assert log_ratio(ARM, LogSample(np.empty(0), np.log([9000.0])), spread).bound == "upper"
    assert log_ratio(LogSample(np.empty(0)), REFERENCE, spread) == Interval()


def test_mean_of_an_arm() -> None:
    """s / sqrt(3) * t_8 = 0.1 / 1.7321 * 2.3060 = 0.13314 on the log scale."""
    mean = log_mean(REFERENCE, Spread(0.1, 8)).map(math.exp)
    assert mean.estimate == pytest.approx(1000)
    assert mean.high == pytest.approx(1000 * math.exp(0.13314), rel=1e-4)


def test_partly_censored_arms_do_not_shrink_the_spread() -> None:
    """Two arms of five seeds with true spread 0.1, one cut at its mean: the values below the cut alone show 0.06."""
    rng = np.random.default_rng(3)
    variances, below = [], []
    for _ in range(400):
        complete, cut = 0.1 * rng.standard_normal((2, 5))
        sample = LogSample(cut[cut < 0], np.zeros(int((cut >= 0).sum())))
        variances.append(pooled_spread([LogSample(complete), sample]).sd ** 2)
        below += [sample.values.var(ddof=1)] if len(sample.values) > 1 else []
    assert math.sqrt(float(np.mean(variances))) == pytest.approx(0.1, rel=0.1)
    assert math.sqrt(float(np.mean(below))) == pytest.approx(0.06, rel=0.1)


def test_bounds_that_every_draw_would_exceed_leave_the_spread_alone() -> None:
    """A bound far below the values says nothing: s^2 = 0.025 as without it, and no more degrees of freedom."""
    with_bound = LogSample(ARM.values, np.array([-50.0]))
    spread = pooled_spread([REFERENCE, with_bound])
    assert spread.sd == pytest.approx(math.sqrt(0.025), rel=1e-4)
    assert spread.df == 4


def test_equivalence_needs_both_limits_inside_the_margin() -> None:
    assert Interval(1.0, 0.8, 1.3).inside(3 / 4, 4 / 3)
    assert not Interval(1.0, 0.7, 1.3).inside(3 / 4, 4 / 3)
    assert not Interval(None, 0.9, None, "lower").inside(3 / 4, 4 / 3)


def test_update_ratio_of_the_published_control() -> None:
    """r_N = 1.67 at twice the batch: 0.83 of the reference's updates."""
    assert update_ratio(Interval(1.67), 256, 128).estimate == pytest.approx(0.835)


@pytest.mark.parametrize("censored_frac", [0.2, 0.4])
def test_limits_cover_when_seeds_are_censored_at_random_bounds(censored_frac: float) -> None:
    """600 sweeps of four arms with five seeds; one arm is cut so that this share of it is censored.

    At least 0.95 less three standard errors, 0.95 - 3 * sqrt(0.95 * 0.05 / 600) = 0.923.
    """
    rng = np.random.default_rng(2)
    cut = 0.1 * float(norm.ppf(1 - censored_frac))
    missed = 0
    for _ in range(600):
        arm, *others = 0.1 * rng.standard_normal((4, 5))
        sample = LogSample(arm[arm < cut], np.full(int((arm >= cut).sum()), cut))
        complete = [LogSample(values) for values in others]
        ratio = log_ratio(sample, complete[0], pooled_spread([sample, *complete]))
        assert ratio.low is not None
        missed += ratio.low > 0 or (ratio.high is not None and ratio.high < 0)
    assert 1 - missed / 600 >= 0.923


def test_seeds_without_any_spread_still_have_a_bound() -> None:
    """Two of three seeds at exactly 8.0, the third beyond 9.5, r_q with a deviation of 0.1 on 4 df: the limit is found.

    Without spread the likelihood of 8, 8 and beyond 9.5 is largest at their mean, 8.5, and falls off at once: the limit
    is 8.5 - 8 - t_4 0.1 = 0.5 - 0.2776.
    """
    arm, reference = LogSample(np.array([8.0, 8.0]), np.array([9.5])), LogSample(np.array([8.0, 8.0, 8.0]))
    found = log_ratio(arm, reference, Spread(0.0, 4), divisor=Mean(0.0, 0.01, 4))
    assert found.bound == "lower" and found.high is None
    assert found.low == pytest.approx(0.2224, abs=1e-4)
