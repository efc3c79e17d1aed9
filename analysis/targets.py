"""Which targets to compare at: the default where none is stated, and the round levels for r_N(target).

Only the reference's own curves decide, so that no target is picked for what it makes of the other arms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from analysis.errors import InputError
from analysis.target import HOLD, Crossing, samples_to_target

Points = tuple[np.ndarray, np.ndarray]
"""A curve as (samples_K, scores_K)."""
FEWEST_STEPS = 10
RISEN = 0.9


@dataclass(frozen=True)
class Target:
    """A target and the rule that chose it, in words."""

    value: float
    rule: str


def round_step(low: float, high: float) -> float:
    """The largest of 1, 2, 5 times a power of ten that fits at least ten times between two scores.

    >>> round_step(0.31, 0.95), round_step(0.0, 0.66), round_step(-3.0, 12.0)
    (0.05, 0.05, 1.0)
    """
    power = 10.0 ** math.floor(math.log10((high - low) / FEWEST_STEPS))
    return max(factor * power for factor in (1, 2, 5) if factor * power * FEWEST_STEPS <= (high - low) * (1 + 1e-9))


def round_levels(curves: Sequence[Points]) -> np.ndarray:
    """The multiples of the round step that lie above the first score of every curve and not above all, increasing.

    Empty where the scores never change.
    """
    scores = np.concatenate([scores_K for _, scores_K in curves])
    low, high = float(scores.min()), float(scores.max())
    if low == high:
        return np.empty(0)
    step = round_step(low, high)
    above = max(float(scores_K[0]) for _, scores_K in curves)
    levels = np.arange(math.floor(above / step), math.ceil(high / step) + 1) * step
    digits = max(-math.floor(math.log10(step)), 0)
    return np.array([level for level in np.round(levels, digits) if above < level <= high])


def reached_levels(curves: Sequence[Points]) -> list[float]:
    """The round levels that every curve reaches, by the rule of N*."""
    return [float(x) for x in round_levels(curves) if all(found.estimate for found in _crossings(curves, x))]


def default_target(reference_curves: Sequence[Points]) -> Target:
    """The highest round level that every seed of the reference has held with a fifth of its samples left, still rising.

    reference_curves: (samples_K, scores_K) of each seed. A target holds when the score stays at it until 1.25 N*
    (analysis.target), hence N* must lie within 1 / 1.25 of what was recorded. Still rising: at most nine tenths of the
    way from the first to the last score of each seed's isotonic fit, since near a plateau N* says little. Where no
    level does, the lowest one stands in, and the report tells of the seeds that do not reach it.

    >>> curve = np.arange(0, 11_000, 1000), np.linspace(0.0, 1.0, 11)
    >>> default_target([curve]).value
    0.8
    """
    if not reference_curves:
        raise InputError("no target is stated, and there is no evaluation of the reference to choose one from")
    levels = round_levels(reference_curves)
    if not len(levels):
        return Target(
            float(reference_curves[0][1].max()), "the reference's highest score: no round level lies above its first"
        )
    step = levels[1] - levels[0] if len(levels) > 1 else levels[0]
    flat = min(_nearly_flat(scores_K) for _, scores_K in reference_curves)
    held = [level for level in levels if level <= flat and _held(reference_curves, float(level))]
    if held:
        text = "the highest that every seed of the reference holds with a fifth of its samples left and a tenth to rise"
        return Target(float(held[-1]), f"of the multiples of {step:.6g}, {text}")
    text = "the lowest above the reference's first scores: not every seed holds one with a fifth of its samples left"
    return Target(float(levels[0]), f"of the multiples of {step:.6g}, {text}")


def _nearly_flat(scores_K: np.ndarray) -> float:
    """The score at nine tenths of the rise of the isotonic fit."""
    fit_K = isotonic_regression(scores_K).x
    return float(fit_K[0] + RISEN * (fit_K[-1] - fit_K[0])) + 1e-9


def _held(curves: Sequence[Points], level: float) -> bool:
    pairs = zip(_crossings(curves, level), curves, strict=True)
    return all(
        found.estimate is not None and (1 + HOLD) * found.estimate <= samples_K[-1] for found, (samples_K, _) in pairs
    )


def _crossings(curves: Sequence[Points], level: float) -> list[Crossing]:
    return [samples_to_target(samples_K, scores_K, level) for samples_K, scores_K in curves]
