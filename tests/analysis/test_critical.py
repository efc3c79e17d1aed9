"""The hyperbola, Zhang's criterion and the plateau of generation."""

import math

import numpy as np
import pytest

from analysis.critical import crossing_batch, fit_hyperbola, plateau, twenty_percent_batch
from analysis.penalty import Interval, LogSample, Spread, pooled_spread


def test_the_published_steps_give_the_published_fit() -> None:
    """S = a + b / B fitted on logs is N* = S B = b (1 + B / (b / a)): a = 1293.83, b = 2.83426e6, B* = 745.3."""
    batches = 64 * 2.0 ** np.arange(9)
    steps = np.array([46000, 23000, 13282, 7000, 3840, 2528, 1917, 1600, 1600])
    fit = fit_hyperbola(batches, np.log(steps * batches), np.ones(9), Spread(0, 0))
    assert fit is not None and fit.interval.estimate is not None
    assert fit.samples_at_zero == pytest.approx(2.83426e6, rel=1e-4)
    assert fit.samples_at_zero / fit.interval.estimate == pytest.approx(1293.83, rel=1e-4)
    assert twenty_percent_batch(fit.interval.estimate, 256) == pytest.approx(745.3, abs=0.1)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_an_exact_hyperbola_is_found(power: float) -> None:
    batches = np.array([16.0, 64, 256, 1024])
    fit = fit_hyperbola(batches, np.log(8000 * (1 + batches / 500) ** power), np.full(4, 5.0), Spread(0.05, 16), power)
    assert fit is not None
    assert fit.interval.estimate == pytest.approx(500, rel=1e-3)
    assert fit.residual < 1e-4 and fit.predict(500.0) == pytest.approx(8000 * 2**power, rel=1e-3)
    assert fit.lack_of_fit_p == pytest.approx(1.0)
    assert fit.interval.low is not None and fit.interval.high is not None
    assert fit.interval.low < 500 < fit.interval.high


def test_a_flat_penalty_has_no_upper_limit() -> None:
    batches = np.array([16.0, 64, 256])
    fit = fit_hyperbola(batches, np.full(3, math.log(9000)), np.full(3, 5.0), Spread(0.1, 12))
    assert fit is not None
    assert fit.interval.estimate is None and fit.interval.high is None and fit.interval.bound == "lower"
    assert fit.interval.low is not None and fit.interval.low > 256
    assert fit.predict(256.0) == pytest.approx(9000)
    assert fit_hyperbola(batches[:2], np.zeros(2), np.ones(2), Spread(0.1, 2)) is None


def test_limits_of_the_critical_batch_cover() -> None:
    """300 sweeps of five arms: at least 0.95 less three standard errors, 0.912."""
    rng = np.random.default_rng(0)
    batches = np.array([16.0, 64, 256, 1024, 2048])
    truth = np.log(8000 * (1 + batches / 1500))
    covered = 0
    for _ in range(300):
        values = truth[:, None] + 0.1 * rng.standard_normal((5, 5))
        spread = Spread(float(np.sqrt(values.var(axis=1, ddof=1).mean())), 20)
        fit = fit_hyperbola(batches, values.mean(axis=1), np.full(5, 5.0), spread)
        assert fit is not None
        low, high = fit.interval.low or 0.0, fit.interval.high or math.inf
        covered += low < 1500 < high
    assert covered / 300 >= 0.912


def test_a_rate_that_still_grows_has_no_plateau() -> None:
    found = plateau(np.array([8.0, 64, 512]), np.array([[100.0, 800, 6400]]))
    assert found is not None
    assert not found.reached and found.interval.estimate is None and found.per_s == pytest.approx(6400)
    assert plateau(np.array([8.0]), np.array([[100.0]])) is None


def test_a_rate_that_is_full_at_the_smallest_batch_is_a_bound() -> None:
    found = plateau(np.array([8.0, 64, 512]), np.array([[990.0, 1000, 1000], [1000.0, 1010, 1000]]))
    assert found is not None and found.reached
    assert found.interval == Interval(None, None, 8.0, "upper")


def test_where_generation_has_nine_tenths_of_its_plateau() -> None:
    """From 50 at 64 to 100 at 256 on log axes: 90 lies at 256 * 4^(log(0.9) / log 2) = 207.3, in every repetition."""
    rates = np.array([[50.0, 100, 100], [55, 110, 110]])
    found = plateau(np.array([64.0, 256, 1024]), rates)
    assert found is not None and found.reached
    where = 256 * 4 ** (math.log(0.9) / math.log(2))
    assert found.interval.estimate == pytest.approx(where)
    assert found.interval.low == pytest.approx(where) and found.interval.high == pytest.approx(where)


def logs(*samples: float) -> LogSample:
    return LogSample(np.log(samples))


def test_a_crossing_with_limits_worked_by_hand() -> None:
    """From log r_N = 0 at 64 to log 2 at 256, two seeds each, s = 0.1 with 10 df (t = 2.228).

    At a share w of the way the middle is 0.6931 w, its half-width 2.228 * 0.1 * w (the reference's part cancels but for w):
    4/3 lies at w = 0.2877 / 0.6931 = 0.4150, its limits at 0.2877 / (0.6931 +- 0.2228).
    """
    found = crossing_batch([64, 256], [logs(8000, 8000), logs(16000, 16000)], Spread(0.1, 10), 4 / 3)
    expected = [64 * 4 ** (0.28768 / slope) for slope in (0.69315, 0.69315 + 0.22281, 0.69315 - 0.22281)]
    assert [found.estimate, found.low, found.high] == pytest.approx(expected, rel=2e-3)


def test_a_crossing_that_is_bracketed_or_not_reached() -> None:
    spread, reference = Spread(0.05, 8), logs(8000, 8000)
    beyond = LogSample(np.empty(0), np.log([24000.0, 24000.0]))
    bracketed = crossing_batch([64, 128, 256], [reference, logs(8400, 8400), beyond], spread, 4 / 3)
    assert (bracketed.estimate, bracketed.low, bracketed.high, bracketed.bound) == (None, 128, 256, None)
    short = LogSample(np.empty(0), np.log([8100.0, 8100.0]))
    unknown = crossing_batch([64, 128, 256], [reference, logs(8400, 8400), short], spread, 4 / 3)
    assert (unknown.low, unknown.high, unknown.bound) == (128, None, "lower")
    never = crossing_batch([64, 128], [reference, logs(8100, 8100)], spread, 4 / 3)
    assert (never.estimate, never.low, never.bound) == (None, 128, "lower")
    alone = crossing_batch([64, 256], [logs(8000), logs(16000)], Spread(0.0, 0), 4 / 3)
    assert alone.estimate == pytest.approx(114, abs=1) and alone.low is None and alone.high is None
    assert crossing_batch([64, 256], [beyond, reference], spread, 4 / 3).bound is None


def test_limits_of_a_crossing_cover() -> None:
    """400 sweeps, r_N = (B / 64)^0.25 from 64 to 1,024, spread 0.1: 4/3 at 64 (4/3)^4 = 202.3; 0.917 at least."""
    rng = np.random.default_rng(4)
    batches = [64.0, 128, 256, 512, 1024]
    held = 0
    for _ in range(400):
        samples = [LogSample(9.0 + 0.25 * math.log(b / 64) + 0.1 * rng.standard_normal(5)) for b in batches]
        found = crossing_batch(batches, samples, pooled_spread(samples), 4 / 3)
        held += (found.low is None or found.low <= 202.3) and (found.high is None or found.high >= 202.3)
    assert held / 400 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400)


def test_zhangs_batch_has_the_interval_of_the_fit() -> None:
    """B* = B_c / 5 + 1.2 B_0: 500 / 5 + 76.8 = 176.8."""
    batches = np.array([16.0, 64, 256, 1024])
    fit = fit_hyperbola(batches, np.log(8000 * (1 + batches / 500)), np.full(4, 5.0), Spread(0.05, 16))
    assert fit is not None
    found = fit.twenty_percent_batch(64)
    assert found.estimate == pytest.approx(176.8, rel=1e-3)
    assert fit.interval.low is not None and found.low == pytest.approx(fit.interval.low / 5 + 76.8)
