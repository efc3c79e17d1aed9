"""What the gradient noise of the reference run alone predicts for r_N at other batches, beside what was measured.

With the noise scale B_n = tr(S) / |G|^2 measured at the reference's own updates:

- optimal step at every batch: r_N = h(B) = (1 + B/B_n) / (1 + B_ref/B_n) (McCandlish et al., arXiv:1812.06162);
- Adam at a small rate, signal and noise alone: an update moves lr |G| / sqrt(|G|^2 + tr(S)/B) along the signal, hence
  r_N = (B/B_ref) (lr_ref/lr) sqrt((1 + B_n/B) / (1 + B_n/B_ref)), which is sqrt(h(B)) with the square-root rule.

Neither knows of curvature, nor that the noise changes as the policy learns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from analysis.penalty import Interval
from analysis.scales import Scales
from analysis.study import BATCH_AXES


def optimal_step(train_batch: float, reference_batch: float, noise_scale: float) -> float:
    """h(B); 1 without a limit to the noise.

    >>> optimal_step(300, 100, 100), optimal_step(300, 100, math.inf), optimal_step(300, 100, 0)
    (2.0, 1.0, 3.0)
    """
    if math.isinf(noise_scale):
        return 1.0
    return (train_batch + noise_scale) / (reference_batch + noise_scale)


def adam(train_batch: float, reference_batch: float, lr_ratio: float, noise_scale: float) -> float:
    """r_N of Adam at lr_ratio times the reference's rate, by signal and noise alone.

    The square-root rule at B = 300 with B_ref = B_n = 100 gives sqrt(2); the fixed rate 3 sqrt((4/3) / 2), and sqrt(3)
    where all is noise.

    >>> round(adam(300, 100, math.sqrt(3), 100) ** 2, 12), round(adam(300, 100, 1, 100) ** 2, 12)
    (2.0, 6.0)
    >>> round(adam(300, 100, 1, math.inf) ** 2, 12)
    3.0
    """
    kappa = train_batch / reference_batch
    return kappa / lr_ratio * math.sqrt(optimal_step(train_batch, reference_batch, noise_scale) / kappa)


def over_noise(formula: Callable[[float], float], noise: Interval) -> Interval:
    """The formula at B_n with the limits that B_n's interval gives; the formula is monotone in B_n.

    >>> over_noise(lambda noise: optimal_step(300, 100, noise), Interval(100.0, 50.0, 300.0))
    Interval(estimate=2.0, low=1.5, high=2.3333333333333335, bound=None)
    """
    if noise.estimate is None:
        return Interval()
    if noise.low is None or noise.high is None:
        return Interval(formula(noise.estimate))
    low, high = sorted((formula(noise.low), formula(noise.high)))
    return Interval(formula(noise.estimate), low, high)


@dataclass(frozen=True)
class Prediction:
    """r_N of one arm by both forms, beside the measured one. optimal_step is empty where the rate stays fixed."""

    arm: str
    measured: Interval
    optimal_step: Interval
    adam: Interval


@dataclass(frozen=True)
class Predictions:
    """Predictions of the arms that differ from the reference in prompts and rate alone; `flag`: why there are none."""

    arms: list[Prediction]
    flag: str | None = None

    def rms_log_error(self, form: str) -> float | None:
        """Root mean square of log(predicted / measured) over the arms that have both."""
        errors = [log_error(getattr(found, form), found.measured) for found in self.arms]
        squares = [error**2 for error in errors if error is not None]
        return math.sqrt(float(np.mean(squares))) if squares else None


def log_error(predicted: Interval, measured: Interval) -> float | None:
    """log(predicted / measured); None without either.

    >>> round(log_error(Interval(1.5), Interval(3.0)), 4), log_error(Interval(1.5), Interval(None, 2.0))
    (-0.6931, None)
    """
    if predicted.estimate is None or measured.estimate is None:
        return None
    return math.log(predicted.estimate / measured.estimate)


def predict(scales: Scales) -> Predictions:
    """Both forms for every arm with another batch, of the reference's group size and of its family but for the rule."""
    study, noise = scales.study, scales.noise_scale()
    if noise.interval.estimate is None:
        return Predictions([], noise.flag)
    arms, reference = study.sweep.arms, study.reference
    found = []
    for arm in sorted(study.arms, key=scales.train_batch.__getitem__):
        if scales.train_batch[arm] != scales.train_batch[reference] and _comparable(scales, arm):
            batches = scales.train_batch[arm], scales.train_batch[reference]
            ratio = float(arms.loc[arm, "lr"] / arms.loc[reference, "lr"])
            fixed = arms.loc[arm, "lr_rule"] == "fixed"
            optimal = Interval() if fixed else over_noise(partial(optimal_step, *batches), noise.interval)
            by_adam = over_noise(partial(adam, *batches, ratio), noise.interval)
            found.append(Prediction(arm, study.r_N(arm), optimal, by_adam))
    return Predictions(found, None if found else "no other batch of the reference's group size")


def _comparable(scales: Scales, arm: str) -> bool:
    """Whether an arm differs from the reference in the number of prompts and in learning rates and rules alone."""
    study = scales.study
    free = {*BATCH_AXES, "lr_rule", "critic_lr_rule"} - {"group_size"}
    axes = study.sweep.arms.drop(columns=list(free), errors="ignore")
    return bool((axes.loc[arm].map(str) == axes.loc[study.reference].map(str)).all())


def predicted_curve(scales: Scales, train_batch_M: np.ndarray) -> np.ndarray:
    """Adam's form along the rates of the reference's family; empty where nothing can be predicted."""
    noise, reference = scales.noise_scale().interval.estimate, scales.study.reference
    arms = [arm for arm in scales.family if _comparable(scales, arm)]
    batches = [scales.train_batch[arm] for arm in arms]
    if noise is None or len(set(batches)) < 2:
        return np.empty(0)
    lr = scales.study.sweep.arms["lr"]
    log_ratio_M = np.interp(np.log(train_batch_M), np.log(batches), np.log([lr[arm] / lr[reference] for arm in arms]))
    centre = scales.train_batch[reference]
    pairs = zip(train_batch_M, np.exp(log_ratio_M), strict=True)
    return np.array([adam(batch, centre, ratio, noise) for batch, ratio in pairs])
