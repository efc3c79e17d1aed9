"""N*: the samples at which a learning curve reaches the target.

The rule, the same for every arm and seed:

1. Isotonic regression of the scores over the evaluations. A curve read at its first passage comes early, because the
   finer the grid the more chances noise has; the isotonic fit reaches the target where the *mean* of what follows does.
2. Later falls count only up to `HOLD` beyond the crossing: the target is reached at the first evaluation from which the
   score stays, on average over every stretch, at or above the target until (1 + HOLD) times its samples, and over at
   least one further evaluation where there is one. A curve that climbs and collapses later has reached the target.
3. Monotone cubic interpolation (PCHIP) of the fit between the last evaluation below and the first at or above. A chord
   would come up to 3% late on a concave curve that has two or three points before the target.

The isotonic fit first reaches c at index k = argmin_k sum_{i<k} (y_i - c), so (2) only limits how far ahead the
minimum is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq, isotonic_regression

HOLD = 0.25


@dataclass(frozen=True)
class Crossing:
    """N* of one trial, in samples.

    below and above are the evaluations on either side of the estimate. `censored` says on which side the truth is
    unknown: "right", the curve ends at `below` without reaching the target; "left", it was there at its first
    evaluation, `above`. A censored crossing has no estimate.
    """

    below: float | None
    above: float | None
    estimate: float | None
    censored: Literal["left", "right"] | None = None


def samples_to_target(samples_K: np.ndarray, scores_K: np.ndarray, target: float, hold: float = HOLD) -> Crossing:
    """N* of one curve by the rule above.

    samples_K: samples_trained of the K >= 1 evaluations, strictly increasing. scores_K: their scores, finite.

    >>> samples_to_target(np.array([0, 1000, 2000, 3000]), np.array([0.125, 0.25, 0.375, 0.5]), 0.4375)
    Crossing(below=2000.0, above=3000.0, estimate=2500.0, censored=None)
    >>> samples_to_target(np.array([0, 1000, 2000]), np.array([0.2, 0.4, 0.6]), 0.7)
    Crossing(below=2000.0, above=None, estimate=None, censored='right')
    """
    samples_K = np.asarray(samples_K, dtype=float)
    scores_K = np.asarray(scores_K, dtype=float)
    found = _first_held(samples_K, scores_K, target, hold)
    if found is None:
        return Crossing(float(samples_K[-1]), None, None, "right")
    first, end = found
    if first == 0:
        return Crossing(None, float(samples_K[0]), None, "left")
    fit_K = isotonic_regression(scores_K[:end]).x
    estimate = _interpolate(samples_K[:end], fit_K, target, first)
    return Crossing(float(samples_K[first - 1]), float(samples_K[first]), estimate)


def _first_held(samples_K: np.ndarray, scores_K: np.ndarray, target: float, hold: float) -> tuple[int, int] | None:
    """(index of the first evaluation at or above the target, end of the stretch that says so), or None."""
    tolerance = 1e-12 * max(1.0, abs(target))
    excess_K = np.where(np.abs(scores_K - target) <= tolerance, 0.0, scores_K - target)
    total = np.concatenate([[0.0], np.cumsum(excess_K)])
    lowest = np.minimum.accumulate(total)
    candidates = np.flatnonzero((total[:-1] <= lowest[:-1]) & (excess_K >= 0))
    for first in candidates:
        # Before training nothing has been reached: the whole curve has to agree that it starts at the target.
        until = (1 + hold) * samples_K[first] if first else samples_K[-1]
        end = int(np.searchsorted(samples_K, until, side="right"))
        end = min(max(end, first + 2), len(samples_K))
        if (total[first + 1 : end + 1] >= total[first] - tolerance).all():
            return int(first), end
    return None


def _interpolate(samples_K: np.ndarray, fit_K: np.ndarray, target: float, first: int) -> float:
    """Where the monotone cubic through the fit reaches the target, between evaluations first - 1 and first.

    The cubic of one interval depends on one further point on each side, so only those are passed on.
    """
    low, high = float(samples_K[first - 1]), float(samples_K[first])
    if fit_K[first] <= target:
        return high
    if fit_K[first - 1] >= target:
        return low
    near = slice(max(first - 2, 0), first + 2)
    cubic = PchipInterpolator(samples_K[near], fit_K[near])
    return float(brentq(lambda n: float(cubic(n)) - target, low, high, xtol=1e-6 * (high - low)))


def round_up(estimate: float, boundaries_U: np.ndarray, train_batch: int) -> float:
    """The first update boundary at or after N*: training stops only there, so T counts it.

    boundaries_U: samples_trained after each recorded update, increasing; beyond them whole multiples of train_batch.

    >>> round_up(2500.0, np.array([1024, 2048, 3072]), 1024), round_up(2500.0, np.array([]), 2000)
    (3072.0, 4000.0)
    """
    later = boundaries_U[np.searchsorted(boundaries_U, estimate) :]
    return float(later[0]) if len(later) else float(-(-estimate // train_batch) * train_batch)
