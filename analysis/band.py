"""How far two mean curves lie apart over their common grid, with limits that hold at all its points together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from analysis.curves import Curve, common_grid

DRAWS = 2000
# Normal deviates in memory at once.
BLOCK = 2_000_000


@dataclass(frozen=True)
class Band:
    """J(arm) - J(reference) at samples_M, with simultaneous limits difference_M +- half_M; None: one seed each.

    The limits hold at all M points together with the stated probability, so what they say of the largest distance is
    said with it too: it lies between `low` and `high`.
    """

    samples_M: np.ndarray
    difference_M: np.ndarray
    half_M: np.ndarray | None

    @property
    def place(self) -> int:
        """Where the means lie furthest apart."""
        return int(np.argmax(np.abs(self.difference_M)))

    @property
    def largest(self) -> float:
        """max |J(arm) - J(reference)| of the means."""
        return float(np.abs(self.difference_M).max())

    @property
    def low(self) -> float | None:
        """max over the points of |difference| - half, at least 0."""
        return None if self.half_M is None else max(float((np.abs(self.difference_M) - self.half_M).max()), 0.0)

    @property
    def high(self) -> float | None:
        """max over the points of |difference| + half."""
        return None if self.half_M is None else float((np.abs(self.difference_M) + self.half_M).max())


def band(
    arm: Sequence[Curve], reference: Sequence[Curve], rng: np.random.Generator, level: float = 0.95
) -> Band | None:
    """The band of the difference of two arms with n and m seeds; None where they share no grid point.

    At each point the variance is pooled over the two arms, n + m - 2 degrees of freedom; the half-width is that of
    Student's t with the quantile of the largest |t| over the points (`sup_t`).
    """
    grid_M = common_grid([arm, reference])
    if not len(grid_M):
        return None
    groups = [np.stack([curve.at(grid_M) for curve in curves]) for curves in (arm, reference)]
    difference_M = groups[0].mean(axis=0) - groups[1].mean(axis=0)
    n, m = len(arm), len(reference)
    if n + m == 2:
        return Band(grid_M, difference_M, None)
    residuals_RM = np.concatenate([scores_SM - scores_SM.mean(axis=0) for scores_SM in groups])
    sd_M = np.sqrt((residuals_RM**2).sum(axis=0) / (n + m - 2))
    half_M = sup_t(residuals_RM, n + m - 2, rng, level) * sd_M * math.sqrt(1 / n + 1 / m)
    return Band(grid_M, difference_M, half_M)


def sup_t(
    residuals_RM: np.ndarray, df: int, rng: np.random.Generator, level: float = 0.95, draws: int = DRAWS
) -> float:
    """The quantile of max_m |t_m| over M points whose errors are correlated as the residuals are; by simulation.

    residuals_RM: deviations of R seeds from the mean of their arm. Each draw is a difference and df deviations, normal
    with the residuals' correlation R, from which t_m is made as from data: so points that move together cost nothing
    extra, and few seeds cost what they do in Student's t. R has rank df at most, which would understate how much of
    the error is free at each point; (1 - w) R + w I with w = 1 / (2 df) is taken instead. Never more than Bonferroni's.

    Two points that always move together are one: t_18 at 0.975 is 2.10, where Bonferroni takes 2.45.

    >>> seeds = np.random.default_rng(0).standard_normal((20, 1))
    >>> round(sup_t((seeds - seeds.mean()) * [1.0, 2.0], 18, np.random.default_rng(1)), 1)
    2.2
    """
    squares_M = (residuals_RM**2).sum(axis=0)
    free = squares_M > 1e-24 * max(float(squares_M.max()), 1e-300)
    factor_RM = residuals_RM[:, free] / np.sqrt(squares_M[free])
    num_rows, num_points = factor_RM.shape
    if not num_points:
        return 0.0
    own = 1 / (2 * df)
    largest: list[np.ndarray] = []
    size = max(BLOCK // ((df + 1) * num_points), 1)
    for start in range(0, draws, size):
        shape = (min(size, draws - start), df + 1)
        shared = rng.standard_normal((*shape, num_rows)) @ factor_RM
        errors = math.sqrt(1 - own) * shared + math.sqrt(own) * rng.standard_normal((*shape, num_points))
        largest.append(np.max(errors[:, 0] ** 2 / (errors[:, 1:] ** 2).mean(axis=1), axis=1))
    bonferroni = float(student.ppf(1 - (1 - level) / (2 * num_points), df))
    return min(math.sqrt(float(np.quantile(np.concatenate(largest), level))), bonferroni)
