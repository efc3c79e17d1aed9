"""The critical batches: where larger batches begin to cost samples (training), and stop gaining speed (generation)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, isotonic_regression, minimize_scalar
from scipy.stats import chi2
from scipy.stats import f as fisher
from scipy.stats import t as student

from analysis.penalty import Interval, LogSample, Spread, log_ratio, mean_of

PLATEAU_FRAC = 0.9
# B_c is looked for between these multiples of the smallest and the largest batch; beyond, the fit is a straight line.
SEARCH = (0.01, 100.0)
# Points between two arms at which r_N is interpolated.
BETWEEN = 400


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

    def twenty_percent_batch(self, reference_batch: float) -> Interval:
        """Zhang's B* with the limits that B_c's interval gives."""
        return self.interval.map(lambda critical: twenty_percent_batch(critical, reference_batch))


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


def crossing_batch(
    train_batch_A: Sequence[float], samples_A: Sequence[LogSample], spread: Spread, ratio: float, level: float = 0.95
) -> Interval:
    """The batch at which r_N first reaches `ratio`, log r_N taken linear in log B between arms.

    train_batch_A: strictly increasing, the reference first; samples_A: log N* of the seeds of each. The interval holds
    the batches whose interval of r_N holds the ratio. An arm with a censored seed has no r_N to interpolate: where it
    is shown to lie beyond the ratio, the crossing is bracketed by it and the arm before. bound "lower": not reached.

    log N* rises by 0 and then by log 2 over a factor of 4: 4/3 comes log(4/3) / log(2) = 0.415 of the way.

    >>> arms = [LogSample(np.log([n, n])) for n in (8000, 8000, 16000)]
    >>> found = crossing_batch([64, 256, 1024], arms, Spread(0.0, 3), 4 / 3)
    >>> round(found.estimate), round(256 * 4**0.41504)
    (455, 455)
    """
    goal, reference = math.log(ratio), samples_A[0]
    if not reference.complete:
        return Interval()
    quantile = float(student.ppf((1 + level) / 2, spread.df)) if spread.df else math.nan
    estimate = low = high = None
    for place in range(1, len(train_batch_A)):
        ends = np.log([train_batch_A[place - 1], train_batch_A[place]])
        if not samples_A[place].complete:
            beyond = log_ratio(samples_A[place], reference, spread, level).low
            high = float(train_batch_A[place]) if beyond is not None and beyond > goal else None
            return Interval(
                estimate, low or float(train_batch_A[place - 1]), high, None if high or estimate else "lower"
            )
        x_M, middle_M, half_M = _between(ends, samples_A[place - 1], samples_A[place], reference, spread, quantile)
        estimate = estimate or _first_at(x_M, middle_M, goal)
        low = low or _first_at(x_M, middle_M + half_M, goal)
        high = high or _first_at(x_M, middle_M - half_M, goal)
        if high is not None or (estimate is not None and math.isnan(quantile)):
            return Interval(estimate, low, high)
    if estimate is None and low is None and spread.df:
        low = float(train_batch_A[-1])
    return Interval(estimate, low, None, None if estimate else "lower")


def _between(
    ends: np.ndarray, first: LogSample, second: LogSample, reference: LogSample, spread: Spread, quantile: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(log B, log r_N, half-width of its interval) from one arm to the next; the reference may be the first."""
    share_M = np.linspace(0, 1, BETWEEN)
    middle_M = (1 - share_M) * first.values.mean() + share_M * second.values.mean() - reference.values.mean()
    from_first_M = (1 - share_M) ** 2 / first.size + 1 / reference.size
    if first is reference:
        from_first_M = share_M**2 / reference.size
    half_M = quantile * spread.sd * np.sqrt(from_first_M + share_M**2 / second.size)
    return ends[0] + share_M * (ends[1] - ends[0]), middle_M, half_M


def _first_at(x_M: np.ndarray, y_M: np.ndarray, goal: float) -> float | None:
    """exp(x) where y first reaches the goal; None where it does not, or is unknown."""
    reached = np.flatnonzero(y_M >= goal)
    if not len(reached):
        return None
    place = int(reached[0])
    if place == 0:
        return float(math.exp(x_M[0]))
    return float(math.exp(np.interp(goal, y_M[place - 1 : place + 1], x_M[place - 1 : place + 1])))


@dataclass(frozen=True)
class Plateau:
    """Where a rate has most of what it can reach.

    interval: the in-flight batch at 90% of the plateau, empty where it was not reached, an upper bound where the
    smallest batch has it. per_s: the rate at the plateau (a lower bound where it was not reached).
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
    if where == in_flight_A[0]:
        return Plateau(Interval(None, None, where, "upper"), per_s, True)
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
