"""The hyperbola, Zhang's criterion and the plateau of generation."""

import math

import numpy as np
import pytest

from analysis.critical import fit_hyperbola, plateau, twenty_percent_batch
from analysis.penalty import Spread


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


def test_where_generation_has_nine_tenths_of_its_plateau() -> None:
    """From 50 at 64 to 100 at 256 on log axes: 90 lies at 256 * 4^(log(0.9) / log 2) = 207.3, in every repetition."""
    rates = np.array([[50.0, 100, 100], [55, 110, 110]])
    found = plateau(np.array([64.0, 256, 1024]), rates)
    assert found is not None and found.reached
    where = 256 * 4 ** (math.log(0.9) / math.log(2))
    assert found.interval.estimate == pytest.approx(where)
    assert found.interval.low == pytest.approx(where) and found.interval.high == pytest.approx(where)
