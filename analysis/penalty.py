"""r_N: how many times the reference's samples an arm needs, with its interval.

Everything lives on the log scale, where a ratio is a difference and the spread over seeds is about the same for
every arm. Design, fixed beforehand: seeds are not paired across arms (trajectories that share a seed part after an
update, and pairing would cost degrees of freedom); the spread is pooled over the arms; intervals are Student's t. A
seed that did not reach the target enters through the likelihood of lying beyond its last samples, and the interval
becomes one-sided: its finite limit is the one that the two-sided interval would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr
from scipy.stats import t as student

ALIGNED_LOW, ALIGNED_HIGH = 3 / 4, 4 / 3


@dataclass(frozen=True)
class Interval:
    """An estimate with its limits; None is unknown or infinite. `bound` says that only that limit can be known."""

    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    bound: Literal["lower", "upper"] | None = None

    def inside(self, low: float, high: float) -> bool:
        """Whether both limits are known and lie within (low, high)."""
        return self.low is not None and self.high is not None and low < self.low and self.high < high

    def map(self, function: Callable[[float], float]) -> Interval:
        """The interval of function(x), increasing."""
        estimate, low, high = (None if x is None else function(x) for x in (self.estimate, self.low, self.high))
        return Interval(estimate, low, high, self.bound)


@dataclass(frozen=True)
class Mean:
    """An estimated mean with the variance of the estimate and its degrees of freedom; df 0: the variance is unknown."""

    value: float
    variance: float
    df: float

    def interval(self, level: float = 0.95) -> Interval:
        """Student's t interval: value +- t_df sqrt(variance); the estimate alone when df is 0."""
        if self.df == 0:
            return Interval(self.value)
        half = float(student.ppf((1 + level) / 2, self.df)) * math.sqrt(self.variance)
        return Interval(self.value, self.value - half, self.value + half)


EXACT = Mean(0.0, 0.0, math.inf)


def mean_of(values: np.ndarray) -> Mean:
    """The mean of n >= 1 independent values: variance s^2 / n, n - 1 degrees of freedom.

    >>> interval = mean_of(np.array([1.0, 2.0, 3.0])).interval()  # s = 1, t_2 = 4.3027, half width 4.3027 / sqrt(3)
    >>> interval.estimate, round(interval.low, 4), round(interval.high, 4)
    (2.0, -0.4841, 4.4841)
    """
    n = len(values)
    return Mean(float(np.mean(values)), float(np.var(values, ddof=1)) / n if n > 1 else 0.0, n - 1)


@dataclass(frozen=True)
class Spread:
    """A standard deviation over seeds on the log scale and its degrees of freedom; df 0: unknown."""

    sd: float
    df: float


@dataclass(frozen=True)
class LogSample:
    """The seeds of one arm on the log scale.

    values: log N* of those that reached the target. bounds: log of the samples that the others are known to exceed.
    """

    values: np.ndarray
    bounds: np.ndarray = field(default_factory=lambda: np.empty(0))

    @property
    def size(self) -> int:
        return len(self.values) + len(self.bounds)

    @property
    def complete(self) -> bool:
        """Whether every seed has an N*."""
        return len(self.values) > 0 and len(self.bounds) == 0


def pooled_spread(samples: Sequence[LogSample]) -> Spread:
    """Spread over seeds pooled over the arms: s^2 = sum_a sum_i (x_ai - mean_a)^2 / sum_a (n_a - 1).

    An arm of which some seeds are censored counts too, by restricted likelihood: were it left out, the arms that happen
    to keep all seeds within the budget would show too small a spread. It adds one degree of freedom less than it has
    values.

    >>> arms = [[1.0, 3.0], [2.0, 2.0, 5.0], [9.0]]  # squares 2 + 6 + 0, df 1 + 2 + 0
    >>> pooled_spread([LogSample(np.array(values)) for values in arms])
    Spread(sd=1.632993161855452, df=3)
    """
    used = [sample for sample in samples if len(sample.values)]
    df = sum(len(sample.values) - 1 for sample in used)
    squares = sum(float(((sample.values - sample.values.mean()) ** 2).sum()) for sample in used)
    censored = [sample for sample in used if len(sample.bounds) and len(sample.values) > 1]
    if df == 0 or squares == 0 or not censored:
        return Spread(math.sqrt(squares / df) if df else 0.0, df)

    def loss(log_sd: float) -> float:
        sd = math.exp(log_sd)
        beyond = sum(_log_beyond(sample, sd) for sample in censored)
        return df * log_sd + squares / (2 * sd**2) - beyond

    middle = math.log(squares / df) / 2
    found = minimize_scalar(loss, bounds=(middle - 1, middle + 2), method="bounded")
    return Spread(math.exp(found.x), df)


# For integrals over N(0, 1).
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)


def _log_beyond(sample: LogSample, sd: float) -> float:
    """log E[prod_bounds Phi((mu - L) / sd)] over mu ~ N(mean of the n values, sd^2 / n)."""
    mu = sample.values.mean() + sd / math.sqrt(len(sample.values)) * _NODES
    log_probability = log_ndtr((mu[:, None] - sample.bounds) / sd).sum(axis=1)
    highest = float(log_probability.max())
    return highest + math.log(float(_WEIGHTS @ np.exp(log_probability - highest)) / math.sqrt(2 * math.pi))


def log_mean(sample: LogSample, spread: Spread, level: float = 0.95) -> Interval:
    """The mean log N* of an arm; only a lower limit when a seed is censored."""
    return _minus(sample, 0.0, 0.0, EXACT, spread, level) if sample.size else Interval()


def log_ratio(
    arm: LogSample, reference: LogSample, spread: Spread, level: float = 0.95, divisor: Mean = EXACT
) -> Interval:
    """mean log N*(arm) - mean log N*(reference) - divisor, with its interval.

    With every seed known: d +- t s sqrt(1/n_arm + 1/n_reference). `divisor` is an independent log factor to divide by
    (log r_q makes r_T of r_N): variances add, degrees of freedom by Satterthwaite. A censored arm has only a lower
    limit, a censored reference only an upper one; nothing is known when both are censored or one has no trials.
    """
    if arm.size and reference.complete:
        return _minus(arm, float(reference.values.mean()), 1 / reference.size, divisor, spread, level)
    if arm.complete and reference.size:
        inverse = Mean(-divisor.value, divisor.variance, divisor.df)
        low = _minus(reference, float(arm.values.mean()), 1 / arm.size, inverse, spread, level).low
        return Interval(None, None, None if low is None else -low, "upper")
    return Interval()


def _minus(
    sample: LogSample, other: float, other_weight: float, divisor: Mean, spread: Spread, level: float
) -> Interval:
    """mean(sample) - other - divisor, where `other` is a mean with variance other_weight * s^2."""
    seeds = Mean(0.0, spread.sd**2 * (1 / sample.size + other_weight), spread.df)
    total = _plus(seeds, divisor)
    shift = other + divisor.value
    if sample.complete:
        return Mean(float(sample.values.mean()) - shift, total.variance, total.df).interval(level)
    if total.df == 0:
        return Interval(bound="lower")
    quantile = float(student.ppf((1 + level) / 2, total.df))
    # A thousandth of a percent: with less the equation of the limit is lost in rounding.
    sd = max(spread.sd, 1e-5)
    low = _profile_limit(sample, sd, sd**2 * other_weight + divisor.variance, quantile)
    if not len(sample.values):
        # The likelihood would put the mean of several seeds beyond their bound; no more is claimed than was seen.
        low = min(low, float(sample.bounds.min()))
    return Interval(None, low - shift, None, "lower")


def _plus(a: Mean, b: Mean) -> Mean:
    """The sum of two independent means: df = (v_a + v_b)^2 / (v_a^2 / df_a + v_b^2 / df_b); 0 if either is unknown."""
    variance = a.variance + b.variance
    if a.df == 0 or b.df == 0:
        return Mean(a.value + b.value, variance, 0)
    spread_of_variance = a.variance**2 / a.df + b.variance**2 / b.df
    df = variance**2 / spread_of_variance if spread_of_variance > 0 else min(a.df, b.df)
    return Mean(a.value + b.value, variance, df)


def _profile_limit(sample: LogSample, sd: float, other_variance: float, quantile: float) -> float:
    """Lower limit of mu - nu by profile likelihood: mu the mean of censored normal values, nu estimated to be 0.

    With l(mu) = sum_values -(x - mu)^2 / (2 sd^2) + sum_bounds log Phi((mu - L) / sd) and 0 ~ N(nu, other_variance),
    the limit d solves 2 (sup l - max_mu [l(mu) - (mu - d)^2 / (2 other_variance)]) = quantile^2. At the inner maximum
    l'(mu) = (mu - d) / other_variance, which leaves one equation in mu,
    2 (sup l - l(mu)) + other_variance l'(mu)^2 = quantile^2. Without bounds d = mean - quantile sqrt(sd^2 / n +
    other_variance), the limit of the two-sided interval.
    """

    def loglik(mu: float) -> float:
        z_values, z_bounds = (sample.values - mu) / sd, (mu - sample.bounds) / sd
        return float(-(z_values**2).sum() / 2 + log_ndtr(z_bounds).sum())

    def slope(mu: float) -> float:
        z_values, z_bounds = (sample.values - mu) / sd, (mu - sample.bounds) / sd
        return float(z_values.sum() + _hazard(z_bounds).sum()) / sd

    everything = np.concatenate([sample.values, sample.bounds])
    floor, top = float(everything.min()) - sd, float(everything.max()) + 10 * sd
    best = brentq(slope, floor, top) if len(sample.values) else top
    highest = loglik(best) if len(sample.values) else 0.0

    def excess(mu: float) -> float:
        return 2 * (highest - loglik(mu)) + other_variance * slope(mu) ** 2 - quantile**2

    while excess(floor) < 0:
        floor -= sd
    mu = brentq(excess, floor, best)
    return float(mu - other_variance * slope(mu))


def _hazard(z: np.ndarray) -> np.ndarray:
    """phi(z) / Phi(z); far below 0, where the quotient of logarithms loses its digits, x + 1/x - 2/x^3 with x = -z.

    >>> _hazard(np.array([0.0, -1e6])).round(6).tolist()
    [0.797885, 1000000.000001]
    """
    x = np.maximum(-z, 100.0)
    near = np.exp(-(np.maximum(z, -100.0) ** 2) / 2 - 0.5 * math.log(2 * math.pi) - log_ndtr(np.maximum(z, -100.0)))
    return np.asarray(np.where(z < -100, x + 1 / x - 2 / x**3, near))


def update_ratio(r_N: Interval, train_batch: int, reference_batch: int) -> Interval:
    """Updates to the target as a share of the reference's: r_N * B_ref / B.

    >>> update_ratio(Interval(1.2, 1.0, 1.44), 256, 128)
    Interval(estimate=0.6, low=0.5, high=0.72, bound=None)
    """
    return r_N.map(lambda ratio: ratio * reference_batch / train_batch)
