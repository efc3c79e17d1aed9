"""Statistics of a profile: the mean of a rate with its interval, and the batch from which a rate has its plateau."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.stats import t as student

PLATEAU_FRAC = 0.9


@dataclass(frozen=True)
class LogMean:
    """A geometric mean over repetitions with its 95% interval, Student's t on the log scale; None with one of them.

    half_width: the limits are within a factor 1 + half_width of the mean.
    """

    estimate: float
    low: float | None
    high: float | None
    half_width: float | None

    def as_json(self) -> dict[str, Any]:
        return {"estimate": self.estimate, "ci95": [self.low, self.high], "half_width": self.half_width}


def log_mean(values_R: Sequence[float] | np.ndarray) -> LogMean:
    """Of positive values.

    Logs 0, log 4: mean log 2, s = log(4) / sqrt(2), t_1 = 12.706, half = 12.706 log(4) / 2 = 8.807.

    >>> found = log_mean([1.0, 4.0])
    >>> found.estimate, round(math.log1p(found.half_width), 3)
    (2.0, 8.807)
    >>> log_mean([3.0]).half_width is None
    True
    """
    logs_R = np.log(values_R)
    middle, n = float(logs_R.mean()), len(logs_R)
    if n < 2:
        return LogMean(math.exp(middle), None, None, None)
    half = float(student.ppf(0.975, n - 1) * logs_R.std(ddof=1)) / math.sqrt(n)
    return LogMean(math.exp(middle), math.exp(middle - half), math.exp(middle + half), math.expm1(half))


@dataclass(frozen=True)
class Knee:
    """The batch at which a rate has PLATEAU_FRAC of its plateau, the rate at the largest batch.

    bound "upper": the smallest batch has it already, `high` is that batch. reached: half the largest batch has it;
    where not, the rate still grows at the largest, the knee is not known and per_s is a lower bound of the plateau.
    """

    estimate: float | None
    low: float | None
    high: float | None
    bound: str | None
    per_s: float
    reached: bool

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        return {"ci95": [found.pop("low"), found.pop("high")], "plateau_frac": PLATEAU_FRAC, **found}


def knee(batch_A: Sequence[int] | np.ndarray, rates_RA: np.ndarray) -> Knee | None:
    """None with fewer than two batches. batch_A: increasing. rates_RA: R repetitions of the rate at each batch.

    The logs of the rates are made monotone (isotonic regression), and the batch is interpolated on the log scale; the
    interval is Student's t over what each repetition gives, and empty where one does not reach its plateau.

    0.9 of the plateau 15106 lies log(0.9 * 15106 / 13137) / log(15106 / 13137) = 0.2456 of the way from 512 to 2048.

    >>> found = knee([8, 64, 512, 2048], np.array([[797.0, 4808, 13137, 15106]]))
    >>> round(found.estimate), found.reached
    (720, True)
    """
    if len(batch_A) < 2:
        return None
    x_A, logs_RA = np.log(batch_A), np.log(rates_RA)
    where, plateau = _first_at_plateau(x_A, logs_RA.mean(axis=0))
    per_s = math.exp(plateau)
    if where is None:
        return Knee(None, None, None, None, per_s, False)
    if where == x_A[0]:
        return Knee(None, None, float(batch_A[0]), "upper", per_s, True)
    each = [_first_at_plateau(x_A, logs_A)[0] for logs_A in logs_RA]
    known = [batch for batch in each if batch is not None]
    if len(known) < 2 or len(known) < len(each):
        return Knee(math.exp(where), None, None, None, per_s, True)
    mean = log_mean(np.exp(known))
    return Knee(mean.estimate, mean.low, mean.high, None, per_s, True)


def _first_at_plateau(x_A: np.ndarray, logs_A: np.ndarray) -> tuple[float | None, float]:
    """(log of the batch with PLATEAU_FRAC of the rate at the largest, log of that rate); None where it still grows."""
    fit_A = isotonic_regression(logs_A).x
    level = fit_A[-1] + math.log(PLATEAU_FRAC)
    if np.interp(x_A[-1] - math.log(2), x_A, fit_A) < level:
        return None, float(fit_A[-1])
    first = int(np.searchsorted(fit_A, level))
    if first == 0:
        return float(x_A[0]), float(fit_A[-1])
    share = (level - fit_A[first - 1]) / (fit_A[first] - fit_A[first - 1])
    return float(x_A[first - 1] + share * (x_A[first] - x_A[first - 1])), float(fit_A[-1])
