"""The bias of N* where an arm has few evaluations before the target, for curves of several shapes.

An arm of batch B is evaluated at multiples of B, so at B = N*/2 there are two points before the target. Truths are
spread by 10%, so that every phase between two points occurs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from analysis.target import samples_to_target

START, TARGET = 0.28, 0.7
SAMPLES, SPACING = 9000.0, 512
# B / N*.
SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


def _levelling(progress: np.ndarray) -> np.ndarray:
    return np.asarray(0.9 - 0.62 * np.exp(-math.log(3.1) * progress))


def _straight(progress: np.ndarray) -> np.ndarray:
    return np.minimum(START + 0.42 * progress, 0.95)


def _accelerating(progress: np.ndarray) -> np.ndarray:
    return START + 0.42 * np.minimum(progress, 1.25) ** 2


def _s_shaped(progress: np.ndarray) -> np.ndarray:
    """Logistic: half way at 0.75 N*, level from 1.5 N* on."""
    rise = 1 / (1 + np.exp(-(np.append(progress, [0.0, 1.0]) - 0.75) / 0.18))
    return np.asarray(START + 0.42 * (rise[:-2] - rise[-2]) / (rise[-1] - rise[-2]))


SHAPES = {"levelling": _levelling, "straight": _straight, "accelerating": _accelerating, "S-shaped": _s_shaped}


@dataclass(frozen=True)
class BiasRow:
    """One kind of curve; eval_sd: standard deviation of the evaluations."""

    shape: str
    eval_sd: float


BIAS_ROWS = tuple(BiasRow(*values) for values in itertools.product(SHAPES, (0.0, 0.02)))


@dataclass(frozen=True)
class Bias:
    """Mean and standard deviation of the relative error of N*, one for each of SHARES."""

    row: BiasRow
    means: tuple[float, ...]
    deviations: tuple[float, ...]


def evaluation_grid(train_batch: int, every_samples: int, budget_samples: int) -> np.ndarray:
    """The first update boundary at or after each multiple of every_samples, up to the budget.

    >>> evaluation_grid(1536, 1024, 6000).tolist()
    [0, 1536, 3072, 4608, 6144]
    """
    last = -(-budget_samples // train_batch) * train_batch
    multiples = np.arange(0, last + 1, every_samples)
    return np.unique(-(-multiples // train_batch) * train_batch)


def bias_of(row: BiasRow, num_trials: int, seed: int = 0) -> Bias:
    """The errors of N* of one kind of curve over num_trials trials at each B / N*."""
    rng = np.random.default_rng([seed, BIAS_ROWS.index(row)])
    errors = [_errors(row, share, num_trials, rng) for share in SHARES]
    return Bias(row, tuple(float(np.mean(e)) for e in errors), tuple(float(np.std(e)) for e in errors))


def _errors(row: BiasRow, share: float, num_trials: int, rng: np.random.Generator) -> list[float]:
    grid = evaluation_grid(round(share * SAMPLES), SPACING, int(3 * SAMPLES)).astype(float)
    found = []
    for truth in SAMPLES * np.exp(0.1 * rng.standard_normal(num_trials)):
        scores = SHAPES[row.shape](grid / truth) + row.eval_sd * rng.standard_normal(len(grid))
        estimate = samples_to_target(grid, scores, TARGET).estimate
        if estimate is not None:
            found.append(estimate / truth - 1)
    return found


def print_bias(found: Iterable[Bias]) -> None:
    """One line per kind of curve: mean error and standard deviation in percent at each B / N*."""
    print("Bias of N* (standard deviation), percent, by B / N*")
    print("curve        eval sd" + "".join(f"{share:>13g}" for share in SHARES))
    for bias in found:
        cells = [f"{100 * mean:+7.2f} ({100 * sd:3.1f})" for mean, sd in zip(bias.means, bias.deviations, strict=True)]
        print(f"{bias.row.shape:12s} {bias.row.eval_sd:7.2f}" + "".join(f"{cell:>13s}" for cell in cells), flush=True)
