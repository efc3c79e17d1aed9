"""Simulated sweeps with known truth: how often the 95% intervals hold it, how wide they are, and the bias of N*.

    python -m analysis.simulate [--sweeps 2000] [--workers 2]

prints one row per cell: seeds, kind of curve, evaluation grid, share of censored trials; the coverage of r_N (its worst
arm), r_q, r_T (its worst arm) and the gradient slope; their median widths (upper over lower limit, of the slope their
difference); by how much the one-sided limits of r_N, where seeds are censored, lie below the truth; and the bias of N*
in its worst arm where hardly any is. `!` marks coverage below 0.95 less three standard errors of the simulation. A
second table gives the bias of N* by B / N* (analysis.simulate_bias).
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
from analysis.simulate_bias import BIAS_ROWS, bias_of, evaluation_grid, print_bias
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


HEADER = "seeds curve  grid   censored |   r_N    r_q    r_T  slope |   r_N   r_q   r_T   slope | slack | bias     sd"
CELLS = tuple(
    Cell(*values)
    for values in itertools.product((3, 5, 10), ("smooth", "noisy", "wavy"), ("fine", "coarse"), (0.0, 0.2, 0.4))
)


@dataclass(frozen=True)
class Coverage:
    """Shares of intervals that hold the truth, and how wide they are. NaN: the cell has none.

    width_*: median ratio of the limits of two-sided intervals, of the slope their difference. slack_r_N: median ratio
    of the truth to one-sided lower limits. bias: mean relative error of N* in the arm where it is largest, spread: its
    standard deviation there. censored: share of trials.
    """

    r_N: float
    r_q: float
    r_T: float
    slope: float
    width_r_N: float
    width_r_q: float
    width_r_T: float
    width_slope: float
    slack_r_N: float
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


def simulate(cell: Cell, num_sweeps: int, seed: int = 0) -> Coverage:
    """Coverage over num_sweeps sweeps: of r_N and r_T in the worst arm, of r_q over all arms, which are alike in it."""
    rng = np.random.default_rng([seed, CELLS.index(cell)])
    budget = _budget(cell.censored_frac)
    found: dict[str, list[list[Judged]]] = {"r_N": [], "r_q": [], "r_T": [], "slope": []}
    errors: list[list[float]] = [[] for _ in ARMS]
    num_censored = 0
    for _ in range(num_sweeps):
        samples = []
        for place, (train_batch, r_N, _) in enumerate(ARMS):
            truth_S = REFERENCE_SAMPLES * r_N * np.exp(SEED_SD * rng.standard_normal(cell.num_seeds))
            crossings = [_crossing(cell, train_batch, truth, budget, rng) for truth in truth_S]
            samples.append(_log_sample(crossings))
            errors[place] += [c.estimate / n - 1 for c, n in zip(crossings, truth_S, strict=True) if c.estimate]
        num_censored += sum(len(sample.bounds) for sample in samples)
        for name, judged in (_ratios(samples, rng) | {"slope": [_slope(cell.num_seeds, rng)]}).items():
            found[name].append(judged)
    shares = {
        name: float(np.mean([[j.holds for j in row] for row in rows], axis=0).min()) for name, rows in found.items()
    }
    shares["r_q"] = float(np.mean([j.holds for row in found["r_q"] for j in row]))
    widths = {f"width_{name}": _median([j.width for row in rows for j in row]) for name, rows in found.items()}
    widths = {name: width if name == "width_slope" else math.exp(width) for name, width in widths.items()}
    slack = math.exp(_median([j.slack for row in found["r_N"] for j in row]))
    censored = num_censored / (num_sweeps * len(ARMS) * cell.num_seeds)
    worst = max(errors, key=lambda own: abs(np.mean(own))) if censored < 0.01 else [math.nan]
    bias, spread = float(np.mean(worst)), float(np.std(worst))
    return Coverage(**shares, **widths, slack_r_N=slack, bias=bias, spread=spread, censored=censored)


def _median(values: list[float | None]) -> float:
    """The median of those that are known; NaN where fewer than one in twenty are."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if len(known) > len(values) / 20 else math.nan


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


@dataclass(frozen=True)
class Judged:
    """One interval beside the truth, on the log scale: width where it has two limits, slack where only a lower one."""

    holds: bool
    width: float | None
    slack: float | None


def _judged(interval: Interval, truth: float) -> Judged:
    low, high = interval.low, interval.high
    holds = (low is None or low <= truth) and (high is None or truth <= high)
    width = high - low if low is not None and high is not None else None
    return Judged(holds, width, truth - low if low is not None and high is None else None)


def _ratios(samples: list[LogSample], rng: np.random.Generator) -> dict[str, list[Judged]]:
    """r_N, r_q and r_T of each arm."""
    spread = pooled_spread(samples)
    found: dict[str, list[Judged]] = {"r_N": [], "r_q": [], "r_T": []}
    shared_R = 0.2 * rng.standard_normal(TIMING_ROUNDS)
    clock_AR = shared_R + CLOCK_SD * rng.standard_normal((len(ARMS), TIMING_ROUNDS))
    for sample, (_, r_N, r_q), clock_R in zip(samples[1:], ARMS[1:], clock_AR[1:], strict=True):
        speed = mean_of(math.log(r_q) + clock_R - clock_AR[0])
        found["r_N"].append(_judged(log_ratio(sample, samples[0], spread), math.log(r_N)))
        found["r_q"].append(_judged(speed.interval(), math.log(r_q)))
        found["r_T"].append(_judged(log_ratio(sample, samples[0], spread, divisor=speed), math.log(r_N / r_q)))
    return found


def _slope(num_seeds: int, rng: np.random.Generator) -> Judged:
    batches = np.array([train_batch for train_batch, _, _ in ARMS])
    noise_SA = NORM_SD * (rng.standard_normal((num_seeds, 1)) + rng.standard_normal((num_seeds, len(batches))))
    return _judged(log_log_slope(batches, batches**-0.5 * np.exp(noise_SA)).interval(), -0.5)


def least_coverage(num_sweeps: int) -> float:
    """0.95 less three standard errors of a share of num_sweeps.

    >>> round(least_coverage(2000), 4)
    0.9354
    """
    return 0.95 - 3 * math.sqrt(0.95 * 0.05 / num_sweeps)


def main() -> None:
    """Print the table of all cells and that of the bias."""
    parser = argparse.ArgumentParser(prog="python -m analysis.simulate")
    parser.add_argument("--sweeps", type=int, default=2000, help="simulated sweeps per cell")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    options = parser.parse_args()
    limit = least_coverage(options.sweeps)
    print(f"{options.sweeps} sweeps per cell; 95% intervals should hold the truth in at least {limit:.4f}")
    print(f"{'':29}|          coverage           |       median width        | r_N   | N*, worst arm")
    print(HEADER)
    with ProcessPoolExecutor(options.workers) as pool:
        for cell, found in zip(CELLS, pool.map(simulate, CELLS, [options.sweeps] * len(CELLS)), strict=True):
            print(_line(cell, found, limit), flush=True)
        print()
        print_bias(pool.map(bias_of, BIAS_ROWS, [options.sweeps] * len(BIAS_ROWS)))


def _line(cell: Cell, found: Coverage, limit: float) -> str:
    shares = (found.r_N, found.r_q, found.r_T, found.slope)
    bias = "" if math.isnan(found.bias) else f"{100 * found.bias:+5.1f}% {100 * found.spread:5.1f}%"
    slack = "" if math.isnan(found.slack_r_N) else f"{found.slack_r_N:5.2f}"
    parts = [
        f"{cell.num_seeds:5d} {cell.curve:6s} {cell.grid:6s} {found.censored:8.2f}",
        " ".join(f"{share:.3f}{' ' if share >= limit else '!'}" for share in shares),
        f"{found.width_r_N:5.2f} {found.width_r_q:5.2f} {found.width_r_T:5.2f} {found.width_slope:7.3f}",
        f"{slack:5s}",
        bias,
    ]
    return " | ".join(parts).rstrip()


if __name__ == "__main__":
    main()
