"""The critical batches: where larger batches begin to cost samples (training), and stop gaining speed (generation)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, isotonic_regression, minimize_scalar
from scipy.stats import chi2
from scipy.stats import f as fisher
from scipy.stats import t as student

from analysis.penalty import Interval, Spread, mean_of

PLATEAU_FRAC = 0.9
# B_c is looked for between these multiples of the smallest and the largest batch; beyond, the fit is a straight line.
SEARCH = (0.01, 100.0)


@dataclass(frozen=True)
class HyperbolaFit:
    """N*(B) = N0 (1 + B / B_c)^power, fitted on the log scale.

    interval: B_c with limits (None: unbounded). samples_at_zero: N0. residual: rms of log N* about the fit.
    lack_of_fit_p: probability of a larger misfit if the formula were right (None without replicates or spare arms).
    """

    interval: Interval
    samples_at_zero: float
    residual: float
    lack_of_fit_p: float | None
    power: float

    def predict(self, train_batch: np.ndarray | float) -> np.ndarray | float:
        """N* at a batch, samples."""
        critical = self.interval.estimate
        factor = 1.0 if critical is None else (1 + train_batch / critical) ** self.power
        return self.samples_at_zero * factor


def fit_hyperbola(
    train_batch_A: np.ndarray, log_samples_A: np.ndarray, num_seeds_A: np.ndarray, spread: Spread, power: float = 1.0
) -> HyperbolaFit | None:
    """Weighted least squares of log N* = log N0 + power log(1 + B / B_c); None with fewer than three batches.

    log_samples_A: mean log N* of each arm over num_seeds_A seeds with the common `spread`. The interval holds every B_c
    whose sum of squares exceeds the least by no more than t^2 s^2. power 1: optimal step at every batch; 1/2: Adam with
    the square-root rule at a small rate.
    """
    if len(np.unique(train_batch_A)) < 3:
        return None
    weights_A = num_seeds_A / num_seeds_A.sum()

    def residuals(log_critical: float) -> np.ndarray:
        rest_A = log_samples_A - power * np.log1p(train_batch_A / math.exp(log_critical))
        return np.asarray(rest_A - weights_A @ rest_A)

    def squares(log_critical: float) -> float:
        return float(num_seeds_A @ residuals(log_critical) ** 2)

    low, high = math.log(SEARCH[0] * train_batch_A.min()), math.log(SEARCH[1] * train_batch_A.max())
    grid = np.linspace(low, high, 121)
    start = int(np.argmin([squares(x) for x in grid]))
    around = grid[max(start - 1, 0)], grid[min(start + 1, len(grid) - 1)]
    best = float(minimize_scalar(squares, bounds=around, method="bounded").x)
    rest_A = residuals(best)
    samples_at_zero = math.exp(weights_A @ (log_samples_A - power * np.log1p(train_batch_A / math.exp(best))))
    interval, lack = Interval(math.exp(best)), None
    if start == len(grid) - 1:
        interval, samples_at_zero = Interval(bound="lower"), math.exp(weights_A @ log_samples_A)
    elif start == 0:
        interval = Interval(bound="upper")
    if spread.df and spread.sd > 0:
        allowed = squares(best) + (float(student.ppf(0.975, spread.df)) * spread.sd) ** 2
        below, above = (
            math.exp(brentq(lambda x: squares(x) - allowed, end, best)) if squares(end) > allowed else None
            for end in (low, high)
        )
        interval = Interval(interval.estimate, below, above, interval.bound)
        lack = _lack_of_fit(squares(best), len(train_batch_A) - 2, spread)
    return HyperbolaFit(interval, samples_at_zero, float(np.sqrt(weights_A @ rest_A**2)), lack, power)


def _lack_of_fit(squares: float, spare: int, spread: Spread) -> float | None:
    if spare < 1:
        return None
    if math.isinf(spread.df):
        return float(chi2.sf(squares / spread.sd**2, spare))
    return float(fisher.sf(squares / spare / spread.sd**2, spare, spread.df))


def twenty_percent_batch(critical_batch: float, reference_batch: float) -> float:
    """The batch that needs 20% more samples than the reference by the fit (Zhang et al., arXiv:2410.21676).

    With steps S(B) = a + b / B, B* = b / (5 a) + 1.2 B_0, and b / a is B_c.

    >>> round(twenty_percent_batch(2834260 / 1293.83, 256), 1)
    745.3
    """
    return critical_batch / 5 + 1.2 * reference_batch


@dataclass(frozen=True)
class Plateau:
    """Where a rate has most of what it can reach.

    interval: the in-flight batch at 90% of the plateau, None where it was not reached. per_s: the rate at the plateau
    (a lower bound where it was not reached).
    """

    interval: Interval
    per_s: float
    reached: bool


def plateau(in_flight_A: np.ndarray, rates_RA: np.ndarray) -> Plateau | None:
    """The batch in flight at 90% of the plateau of a rate; None with fewer than two batches.

    in_flight_A: increasing. rates_RA: responses or tokens per second in R repetitions. The rates are made monotone
    (isotonic regression of their logs), the plateau is the rate at the largest batch. It counts as reached when half
    that batch already has 90% of it. The interval is Student's t over repetitions on the log scale.

    log(0.9 * 15106 / 13137) / log(15106 / 13137) = 0.2456 of the way from 512 to 2048: 512 * 4^0.2456.

    >>> found = plateau(np.array([8, 64, 512, 2048]), np.array([[797.0, 4808, 13137, 15106]]))
    >>> round(found.interval.estimate), found.reached
    (720, True)
    """
    if len(in_flight_A) < 2:
        return None
    log_rates_RA = np.log(rates_RA)
    where, per_s = _first_at_plateau(in_flight_A, log_rates_RA.mean(axis=0))
    if where is None:
        return Plateau(Interval(), per_s, False)
    each = [_first_at_plateau(in_flight_A, row_A)[0] for row_A in log_rates_RA]
    if len(each) < 2 or None in each:
        return Plateau(Interval(where), per_s, True)
    limits = mean_of(np.log(np.array(each, dtype=float))).interval()
    return Plateau(limits.map(math.exp), per_s, True)


def _first_at_plateau(in_flight_A: np.ndarray, log_rates_A: np.ndarray) -> tuple[float | None, float]:
    x_A, fit_A = np.log(in_flight_A), isotonic_regression(log_rates_A).x
    level = fit_A[-1] + math.log(PLATEAU_FRAC)
    if np.interp(x_A[-1] - math.log(2), x_A, fit_A) < level:
        return None, float(math.exp(fit_A[-1]))
    first = int(np.searchsorted(fit_A, level))
    if first == 0:
        return float(in_flight_A[0]), float(math.exp(fit_A[-1]))
    share = (level - fit_A[first - 1]) / (fit_A[first] - fit_A[first - 1])
    return float(math.exp(x_A[first - 1] + share * (x_A[first] - x_A[first - 1]))), float(math.exp(fit_A[-1]))
