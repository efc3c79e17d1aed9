"""The largest distance between two mean curves and its simultaneous limits."""

import math

import numpy as np
import pytest
from scipy.stats import t as student

from analysis.band import band, sup_t
from analysis.curves import Curve
from analysis.simulate import true_score


def line(slope: float, every: float, last: float, shift: float = 0.0) -> Curve:
    samples = np.arange(0.0, last + 1, every)
    return Curve(samples, slope * samples + shift)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_the_largest_distance_and_where_it_lies() -> None:
    """0.010 N against 0.012 N: 0.2 apart at N = 100. With one seed each there is no band."""
    found = band([line(0.012, 50, 100)], [line(0.010, 10, 120)], rng())
    assert found is not None
    assert (found.largest, found.samples_M[found.place]) == (pytest.approx(0.2), 100)
    assert found.low is None and found.high is None
    assert band([line(1, 10, 20)], [Curve(np.array([50.0]), np.array([1.0]))], rng()) is None


def test_a_band_worked_by_hand() -> None:
    """Two seeds each, +-0.01 about their mean at both points: pooled variance 2 * 0.01^2, times 1/2 + 1/2.

    The points move together but for w = 1 / (2 * 2): the quantile lies between t_2 = 4.30 of one point and 6.21 of two by
    Bonferroni, which it never exceeds. The distance is 0 at the start and 0.2 at the end.
    """
    arm = [line(0.002, 100, 100, shift) for shift in (0.49, 0.51)]
    reference = [line(0.0, 100, 100, shift) for shift in (0.49, 0.51)]
    found = band(arm, reference, rng())
    assert found is not None and found.half_M is not None
    assert found.half_M[0] == pytest.approx(found.half_M[1])
    assert 4.30 * 0.014142 < found.half_M[0] < 6.2060 * 0.014142
    assert found.low == pytest.approx(0.2 - found.half_M[1]) and found.high == pytest.approx(0.2 + found.half_M[1])


def test_independent_points_cost_what_they_cost_and_one_point_is_students_t() -> None:
    """Eight independent points, 18 df: Sidak's t at (1 + 0.95^(1/8)) / 2 is 3.085. One point: t_18 = 2.101."""
    residuals = np.random.default_rng(1).standard_normal((20, 8))
    many = sup_t(residuals - residuals.mean(axis=0), 18, rng(), draws=20000)
    one = sup_t(residuals[:, :1] - residuals[:, :1].mean(), 18, rng(), draws=20000)
    sidak = float(student.ppf((1 + 0.95 ** (1 / 8)) / 2, 18))
    assert sidak == pytest.approx(3.085, abs=0.001)
    assert many == pytest.approx(sidak, abs=0.08)
    assert one == pytest.approx(2.101, abs=0.05)


def test_points_without_spread_have_no_band() -> None:
    """Every trial starts at the shared warm start: no seed differs there, and it is left out of the quantile."""
    arm = [Curve(np.array([0.0, 10.0]), np.array([0.3, 0.6 + shift])) for shift in (-0.01, 0.01)]
    reference = [Curve(np.array([0.0, 10.0]), np.array([0.3, 0.5 + shift])) for shift in (-0.01, 0.01)]
    found = band(arm, reference, rng())
    assert found is not None and found.half_M is not None
    assert found.half_M[0] == 0
    assert found.half_M[1] == pytest.approx(float(student.ppf(0.975, 2)) * 0.014142, rel=0.1)
    assert sup_t(np.zeros((4, 3)), 2, rng()) == 0


@pytest.mark.parametrize(("num_seeds", "narrower"), [(3, 0.95), (5, 0.90)])
def test_the_whole_curve_is_covered(num_seeds: int, narrower: float) -> None:
    """200 pairs of arms without a true difference, 32 points: seeds that are faster or slower as a whole, and noise.

    The band holds 0 everywhere in at least 0.95 less three standard errors, 0.904, and is narrower than Bonferroni's.
    """
    draws = np.random.default_rng(num_seeds)
    grid = np.linspace(768.0, 24576.0, 32)
    held, widths = 0, []
    bonferroni = float(student.ppf(1 - 0.05 / 64, 2 * num_seeds - 2))
    for _ in range(200):
        arms = []
        for _ in range(2):
            truths = 9000 * np.exp(0.1 * draws.standard_normal(num_seeds))
            noise = 0.01 * draws.standard_normal((num_seeds, 32))
            arms.append([Curve(grid, true_score(grid / n) + own) for n, own in zip(truths, noise, strict=True)])
        found = band(arms[0], arms[1], draws)
        assert found is not None and found.half_M is not None
        held += bool((np.abs(found.difference_M) <= found.half_M).all())
        variances = [np.var([curve.scores_K[0] for curve in arm], ddof=1) for arm in arms]
        widths.append(found.half_M[0] / (bonferroni * math.sqrt(sum(variances) / num_seeds)))
    assert held / 200 >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 200)
    assert float(np.median(widths)) < narrower
