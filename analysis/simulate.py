"""Simulated sweeps with known truth: how often the 95% intervals hold it, and the bias of N*.

    python -m analysis.simulate [--sweeps 2000] [--workers 2]

prints one row per cell: seeds, kind of curve, evaluation grid, share of censored trials; then the coverage of r_N (its
worst arm), r_q, r_T (its worst arm) and the gradient slope, the median width of r_N (upper over lower limit, where it
has both), and the bias and spread of single N* where hardly any is censored. `!` marks what lies below 0.95 less three
standard errors of the simulation.
"""

from __future__ import annotations

import argparse
import itertools
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from analysis.gradients import log_log_slope
from analysis.penalty import Interval, LogSample, log_ratio, mean_of, pooled_spread
from analysis.target import Crossing, samples_to_target

START, TARGET, PLATEAU = 0.28, 0.7, 0.9
REFERENCE_SAMPLES = 9000.0
SEED_SD, CLOCK_SD, NORM_SD, EVAL_SD = 0.1, 0.03, 0.05, 0.02
# Batch, true r_N, true r_q; the first is the reference. At 4,096 there are four evaluations before the target.
ARMS = ((64, 1.0, 1.0), (256, 1.1, 1.8), (1024, 1.4, 1.9), (4096, 1.9, 2.0))
TIMING_ROUNDS = 5
SPACING = {"fine": 512, "coarse": 2048}


@dataclass(frozen=True)
class Cell:
    """One setting of the simulation; censored_frac is the share of all trials that end before their target.

    curve: smooth (exact scores), noisy (independent evaluation noise), wavy (a dip at the start, a wandering policy,
    and in three of ten trials a collapse at 1.7 N*).
    """

    num_seeds: int
    curve: str
    grid: str
    censored_frac: float


CELLS = tuple(
    Cell(*values)
    for values in itertools.product((3, 5, 10), ("smooth", "noisy", "wavy"), ("fine", "coarse"), (0.0, 0.2, 0.4))
)


@dataclass(frozen=True)
class Coverage:
    """Shares of intervals that hold the truth, and how wide they are. NaN: the cell has none."""

    r_N: float
    r_q: float
    r_T: float
    slope: float
    width: float
    bias: float
    spread: float
    censored: float


def true_score(progress: np.ndarray) -> np.ndarray:
    """J at progress = N / N*: an exponential approach from START to PLATEAU that is TARGET at 1.

    >>> true_score(np.array([0.0, 1.0])).round(6).tolist()
    [0.28, 0.7]
    """
    rate = np.log((PLATEAU - START) / (PLATEAU - TARGET))
    return np.asarray(PLATEAU - (PLATEAU - START) * np.exp(-rate * np.asarray(progress)))


def evaluation_grid(train_batch: int, every_samples: int, budget_samples: int) -> np.ndarray:
    """The first update boundary at or after each multiple of every_samples, up to the budget.

    >>> evaluation_grid(1536, 1024, 6000).tolist()
    [0, 1536, 3072, 4608, 6144]
    """
    last = -(-budget_samples // train_batch) * train_batch
    multiples = np.arange(0, last + 1, every_samples)
    return np.unique(-(-multiples // train_batch) * train_batch)


def simulate(cell: Cell, num_sweeps: int, seed: int = 0) -> Coverage:
    """Coverage over num_sweeps sweeps: of r_N and r_T in the worst arm, of r_q over all arms, which are alike in it."""
    rng = np.random.default_rng([seed, CELLS.index(cell)])
    budget = _budget(cell.censored_frac)
    held: dict[str, list[list[bool]]] = {"r_N": [], "r_q": [], "r_T": [], "slope": []}
    widths, errors, num_censored = [], [], 0
    for _ in range(num_sweeps):
        samples, wrong = [], []
        for train_batch, r_N, _ in ARMS:
            truth_S = REFERENCE_SAMPLES * r_N * np.exp(SEED_SD * rng.standard_normal(cell.num_seeds))
            found = [_crossing(cell, train_batch, truth, budget, rng) for truth in truth_S]
            samples.append(_log_sample(found))
            wrong += [c.estimate / truth - 1 for c, truth in zip(found, truth_S, strict=True) if c.estimate]
        num_censored += sum(len(sample.bounds) for sample in samples)
        errors += wrong
        ratios = _ratios(samples, rng)
        for name in ("r_N", "r_q", "r_T"):
            held[name].append([holds for holds, _ in ratios[name]])
        widths += [width for _, width in ratios["r_N"] if width is not None]
        held["slope"].append([_slope_holds(cell.num_seeds, rng)])
    shares = {name: float(np.mean(rows, axis=0).min()) for name, rows in held.items()}
    shares["r_q"] = float(np.mean(held["r_q"]))
    width = math.exp(float(np.median(widths))) if len(widths) > num_sweeps / 10 else math.nan
    censored = num_censored / (num_sweeps * len(ARMS) * cell.num_seeds)
    bias, sd = (float(np.mean(errors)), float(np.std(errors))) if censored < 0.01 else (math.nan, math.nan)
    return Coverage(**shares, width=width, bias=bias, spread=sd, censored=censored)


def _budget(censored_frac: float) -> int:
    """The sample budget beyond which this share of all trials has its N*; generous where nothing is to be censored."""
    if censored_frac == 0:
        return 40960

    def beyond(log_budget: float) -> float:
        centres = [math.log(REFERENCE_SAMPLES * r_N) for _, r_N, _ in ARMS]
        return float(np.mean([norm.sf((log_budget - centre) / SEED_SD) for centre in centres])) - censored_frac

    return int(math.exp(brentq(beyond, math.log(REFERENCE_SAMPLES / 3), math.log(REFERENCE_SAMPLES * 6))))


def _crossing(cell: Cell, train_batch: int, truth: float, budget: int, rng: np.random.Generator) -> Crossing:
    grid = evaluation_grid(train_batch, SPACING[cell.grid], budget)
    grid = grid[grid <= budget].astype(float)
    progress = grid / truth
    scores = true_score(progress)
    if cell.curve == "noisy":
        scores += EVAL_SD * rng.standard_normal(len(grid))
    elif cell.curve == "wavy":
        scores += EVAL_SD * _drift(grid, rng) - 0.1 * np.exp(-(((progress - 0.15) / 0.1) ** 2))
        if rng.random() < 0.3:
            scores -= 0.5 / (1 + np.exp(-(progress - 1.7) / 0.05))
    return samples_to_target(grid, scores, TARGET)


def _drift(grid: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A stationary process of variance 1 whose correlation falls by 1/e in 1,500 samples: policies wander."""
    keep = np.exp(-np.diff(grid) / 1500)
    steps = rng.standard_normal(len(grid))
    values = [steps[0]]
    for kept, step in zip(keep, steps[1:], strict=True):
        values.append(kept * values[-1] + math.sqrt(1 - kept**2) * step)
    return np.array(values)


def _log_sample(crossings: list[Crossing]) -> LogSample:
    values = [c.estimate for c in crossings if c.estimate is not None]
    bounds = [c.below for c in crossings if c.censored == "right" and c.below]
    return LogSample(np.log(np.array(values)), np.log(np.array(bounds)))


def _ratios(samples: list[LogSample], rng: np.random.Generator) -> dict[str, list[tuple[bool, float | None]]]:
    """(whether it holds the truth, width on the log scale) of r_N, r_q and r_T of each arm."""
    spread = pooled_spread(samples)
    found: dict[str, list[tuple[bool, float | None]]] = {"r_N": [], "r_q": [], "r_T": []}
    shared_R = 0.2 * rng.standard_normal(TIMING_ROUNDS)
    clock_AR = shared_R + CLOCK_SD * rng.standard_normal((len(ARMS), TIMING_ROUNDS))
    for sample, (_, r_N, r_q), clock_R in zip(samples[1:], ARMS[1:], clock_AR[1:], strict=True):
        speed = mean_of(math.log(r_q) + clock_R - clock_AR[0])
        found["r_N"].append(_held(log_ratio(sample, samples[0], spread), math.log(r_N)))
        found["r_q"].append(_held(speed.interval(), math.log(r_q)))
        found["r_T"].append(_held(log_ratio(sample, samples[0], spread, divisor=speed), math.log(r_N / r_q)))
    return found


def _held(interval: Interval, truth: float) -> tuple[bool, float | None]:
    low, high = interval.low, interval.high
    holds = (low is None or low <= truth) and (high is None or truth <= high)
    return holds, high - low if low is not None and high is not None else None


def _slope_holds(num_seeds: int, rng: np.random.Generator) -> bool:
    batches = np.array([train_batch for train_batch, _, _ in ARMS])
    noise_SA = NORM_SD * (rng.standard_normal((num_seeds, 1)) + rng.standard_normal((num_seeds, len(batches))))
    return _held(log_log_slope(batches, batches**-0.5 * np.exp(noise_SA)).interval(), -0.5)[0]


def main() -> None:
    """Print the table of all cells."""
    parser = argparse.ArgumentParser(prog="python -m analysis.simulate")
    parser.add_argument("--sweeps", type=int, default=2000, help="simulated sweeps per cell")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    options = parser.parse_args()
    limit = 0.95 - 3 * math.sqrt(0.95 * 0.05 / options.sweeps)
    print(f"{options.sweeps} sweeps per cell; 95% intervals should hold the truth in at least {limit:.4f}")
    print("seeds curve  grid   censored |   r_N    r_q    r_T  slope | width r_N | bias N*  sd N*")
    with ProcessPoolExecutor(options.workers) as pool:
        for cell, found in zip(CELLS, pool.map(simulate, CELLS, [options.sweeps] * len(CELLS)), strict=True):
            shares = [found.r_N, found.r_q, found.r_T, found.slope]
            print(
                f"{cell.num_seeds:5d} {cell.curve:6s} {cell.grid:6s} {found.censored:8.2f} | "
                + " ".join(f"{share:.3f}{' ' if share >= limit else '!'}" for share in shares)
                + f"| {found.width:9.2f} | "
                + ("" if math.isnan(found.bias) else f"{100 * found.bias:+6.1f}% {100 * found.spread:5.1f}%"),
                flush=True,
            )


if __name__ == "__main__":
    main()
