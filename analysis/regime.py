"""Where the time goes as the batch grows: T ~ (1 + B/B_c) (1 + B_h/B), its minimum, and which knee comes first.

N* = N0 (1 + B/B_c) by the fit of r_N, and 1/q = (1/q_max) (1 + B_h/B), where B_h is the batch that runs at half the
largest end-to-end rate. T = N*/q is least at sqrt(B_c B_h).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from analysis.critical import HyperbolaFit, crossing_batch, fit_hyperbola
from analysis.independent import inverse, product
from analysis.penalty import ALIGNED_HIGH, Interval, LogSample
from analysis.scales import Scales

Regime = Literal["generation_first", "training_first", "not_told_apart", "neither_reached", "unknown"]


def relative_time(train_batch: float, reference_batch: float, critical_batch: float, half_speed_batch: float) -> float:
    """r_T by the closed form.

    B_c = 400, B_h = 100: at B = 200 1.5 * 1.5, at 100 1.25 * 2.

    >>> relative_time(200, 100, 400, 100)
    0.9
    """

    def time(batch: float) -> float:
        return (1 + batch / critical_batch) * (1 + half_speed_batch / batch)

    return time(train_batch) / time(reference_batch)


def which_knee_first(generation: Interval, generation_reached: bool | None, training: Interval) -> Regime:
    """Which is passed first as the batch grows, by the intervals of the two knees.

    generation: responses in flight at which generation has most of its rate; training: batch at which r_N is at its
    margin, without an estimate and with bound "lower" where it is not reached.

    >>> knee, later = Interval(100.0, 80.0, 120.0), Interval(300.0, 200.0, 500.0)
    >>> none = Interval(None, 512.0, None, "lower")
    >>> which_knee_first(knee, True, later), which_knee_first(later, True, knee), which_knee_first(knee, True, none)
    ('generation_first', 'training_first', 'generation_first')
    >>> which_knee_first(Interval(), False, later), which_knee_first(Interval(), False, none)
    ('training_first', 'neither_reached')
    >>> which_knee_first(Interval(150.0, 90.0, 250.0), True, later), which_knee_first(Interval(), None, later)
    ('not_told_apart', 'unknown')
    """
    training_reached = training.bound != "lower" and (training.estimate is not None or training.high is not None)
    if generation_reached is None or (not training_reached and training.bound != "lower"):
        return "unknown"
    if not generation_reached:
        return "training_first" if training_reached else "neither_reached"
    if not training_reached:
        return "generation_first"
    if generation.high is not None and training.low is not None and generation.high < training.low:
        return "generation_first"
    if generation.low is not None and training.high is not None and training.high < generation.low:
        return "training_first"
    return "not_told_apart"


@dataclass(frozen=True)
class Optimum:
    """The batch of least time by the closed form; r_T there; `flag` says why there is none."""

    interval: Interval
    r_T: float | None
    flag: str | None = None


class TimeModel:
    """The closed form of a sweep, along the reference's learning-rate rule."""

    def __init__(self, scales: Scales) -> None:
        self.scales = scales
        self.reference_batch = scales.train_batch[scales.study.reference]

    @cached_property
    def training_knee(self) -> Interval:
        """The batch above the reference's at which r_N reaches 4/3."""
        study = self.scales.study
        samples = {self.reference_batch: study.samples["interpolated"][study.reference]}
        for arm in self.scales.family:
            batch, own = self.scales.train_batch[arm], study.samples["interpolated"][arm]
            if batch > self.reference_batch and own.size:
                known = samples.get(batch, LogSample(np.empty(0)))
                together = np.concatenate([known.values, own.values]), np.concatenate([known.bounds, own.bounds])
                samples[batch] = LogSample(*together)
        if not study.learning or len(samples) < 2:
            return Interval()
        return crossing_batch(list(samples), list(samples.values()), study.spread, ALIGNED_HIGH)

    @cached_property
    def speed_fit(self) -> HyperbolaFit | None:
        """1/q = (1/q_max) (1 + B_h/B) over the arms: the hyperbola of N*, with 1/B in place of B; its B_c is 1/B_h."""
        clock = next(iter(self.scales.study.clocks.values()), None)
        if clock is None:
            return None
        arms = [arm for arm in self.scales.family if arm in clock.logs]
        if len(arms) < 3:
            return None
        batches = np.array([self.scales.train_batch[arm] for arm in arms], dtype=float)
        logs = [clock.logs[arm].to_numpy() for arm in arms]
        sizes, means = np.array([len(log) for log in logs], dtype=float), np.array([log.mean() for log in logs])
        return fit_hyperbola(1 / batches, -means, sizes, clock.spread(arms))

    @property
    def half_speed_batch(self) -> Interval:
        """B_h, the batch at half of the largest end-to-end rate."""
        return inverse(self.speed_fit.interval) if self.speed_fit else Interval()

    @cached_property
    def optimum(self) -> Optimum:
        """sqrt(B_c B_h) and r_T there."""
        fit, half = self.scales.fit(1.0), self.half_speed_batch
        critical = fit.interval if fit else Interval()
        if critical.estimate is None:
            rises = fit is None or critical.bound != "lower"
            flag = "B_c is not known" if rises else "N* does not rise: no optimum below the largest batch"
            return Optimum(Interval(), None, flag)
        if half.estimate is None:
            flat = half.bound == "upper"
            flag = "throughput does not rise with the batch" if flat else "B_h is not known"
            return Optimum(Interval(), None, flag)
        best = product(critical, half).map(math.sqrt)
        assert best.estimate is not None
        r_T = relative_time(best.estimate, self.reference_batch, critical.estimate, half.estimate)
        return Optimum(best, r_T)

    def r_T(self, train_batch: float) -> float | None:
        """r_T at a batch by the closed form."""
        fit, half = self.scales.fit(1.0), self.half_speed_batch.estimate
        critical = fit.interval.estimate if fit else None
        return relative_time(train_batch, self.reference_batch, critical, half) if critical and half else None

    @cached_property
    def measured(self) -> dict[str, float]:
        """r_T of the arms of the family that have one."""
        found = {arm: self.scales.study.r_T(arm).estimate for arm in self.scales.family}
        return {arm: value for arm, value in found.items() if value is not None}

    @property
    def best_arm(self) -> str | None:
        """The arm of the family with the smallest measured r_T."""
        return min(self.measured, key=self.measured.__getitem__, default=None)

    def rms_log_error(self) -> float | None:
        """Root mean square of log(r_T by the closed form / measured) over the family without the reference."""
        errors = []
        for arm, value in self.measured.items():
            predicted = self.r_T(self.scales.train_batch[arm])
            if predicted and arm != self.scales.study.reference:
                errors.append(math.log(predicted / value))
        return math.sqrt(float(np.mean(np.square(errors)))) if errors else None

    @cached_property
    def regime(self) -> Regime:
        """Which knee comes first."""
        plateau = self.scales.generation_plateau("generated_per_s")[0]
        interval, reached = (plateau.interval, plateau.reached) if plateau else (Interval(), None)
        return which_knee_first(interval, reached, self.training_knee)
