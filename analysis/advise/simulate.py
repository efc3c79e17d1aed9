"""Simulated advices of known truth: how often the advised arm is good, what that costs, and whether intervals hold.

    python -m analysis.advise.simulate [--procedures 200] [--workers 2]

prints a row per cell: the shape of r_N, where throughput saturates, how wrong the noise scale is; the share of advices
within 10% of the fastest arm, quantiles of the regret, the share of them that were separated, samples as a share of the
full sweep (5 seeds x all arms x budget), full runs, coverage of the 95% intervals of r_T at the end, and the share in
which the checks disagreed. `!` marks less than 90% within 10%.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from analysis.advise.decide import Decision, Rule, allocate
from analysis.advise.evidence import Candidate, Evidence, LocalRatio, Noise, Speed
from analysis.advise.stability import LARGEST, Fate, Stability
from analysis.penalty import LogSample

REFERENCE_BATCH, GROUP_SIZE = 64, 8
KAPPAS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
# Samples that the reference needs, and what a trial may use, in its own batches: those of the default sweep.
REFERENCE_SAMPLES, BUDGET_SAMPLES = 8200.0, 32768.0
PAST_TARGET, REFERENCE_SEEDS, MOST_SEEDS, POINTS = 0.5, 3, 5, 1
NOISE_OWN_SD, NOISE_MODEL_SD, CLOCK_SD, ROUNDS = 0.15, 0.35, 0.03, 5
# By how much all branches of a set are too slow, and each beside that, as seen on four settings (LOG.md).
BRANCH_SHIFT, BRANCH_SHIFT_SD, BRANCH_SYSTEMATIC_SD, BRANCH_SD = 0.5, 0.4, 0.15, 0.30
# Rates the reference is tried with beside the file's, as factors of it; octaves over which runs come to break.
RATES, EDGE_WIDTH = (0.5, 2.0), 0.15


@dataclass(frozen=True)
class Truth:
    """critical: B_c over B_ref; knee: r_N bends sharply there. half: B_h over B_ref, where q has half of its plateau.

    noise_factor: the noise scale measured over B_c, beside its random error. branches: whether there are any.
    rough: r_N leaves the formula as a random walk with this standard deviation per square root of an octave.
    branch_slope: log r_N by branches over the true one, beside their random errors: local and global may differ.
    edge: octaves above the reference's rate where half of the runs break, whatever their batch.
    """

    critical: float
    half: float
    knee: bool = False
    seed_sd: float = 0.10
    noise_factor: float = 1.0
    branches: bool = True
    rough: float = 0.0
    branch_slope: float = 1.0
    edge: float = math.inf

    def log_r_N(self, kappa: float) -> float:
        """The hyperbola (1 + B/B_c) / (1 + B_ref/B_c), or its sharp form (1 + (B/B_c)^4)^(1/4).

        >>> round(math.exp(Truth(10, 1).log_r_N(10)), 3), round(math.exp(Truth(10, 1, knee=True).log_r_N(10)), 3)
        (1.818, 1.189)
        """
        power = 4 if self.knee else 1
        top, bottom = (math.log1p((x / self.critical) ** power) / power for x in (kappa, 1.0))
        return top - bottom

    def log_q(self, kappa: float) -> float:
        """Seconds of an update go as B_h + B: q as 1 / (1 + B_h/B)."""
        return -math.log1p(self.half / kappa)

    def break_chance(self, factor: float) -> float:
        """Of a run at this factor of the reference's rate.

        >>> Truth(10, 1, edge=1).break_chance(2)
        0.5
        """
        return 0.0 if math.isinf(self.edge) else 1 / (1 + math.exp((self.edge - math.log2(factor)) / EDGE_WIDTH))


@dataclass(frozen=True)
class Outcome:
    """One simulated advice. covered: whether the intervals of r_T hold the truth.

    regret: of T / (1 - chance of breaking), that of the arm advised over the least, less 1.
    """

    regret: float
    separated: bool
    share: float
    runs: int
    covered: list[bool]
    disagreed: bool


def procedure(truth: Truth, rng: np.random.Generator, workers: int = 2) -> Outcome:
    """One advice from the first run to the last."""
    names = [f"P{int(k * REFERENCE_BATCH / GROUP_SIZE)}" for k in KAPPAS]
    kappa = dict(zip(names, KAPPAS, strict=True))
    reference = names[KAPPAS.index(1)]
    arms = tuple(
        Candidate(n, int(kappa[n] * REFERENCE_BATCH / GROUP_SIZE), GROUP_SIZE, n, lr=math.sqrt(kappa[n])) for n in names
    )
    walk = _walk(truth.rough, rng)
    log_r_N = {n: truth.log_r_N(kappa[n]) + off for n, off in zip(names, walk, strict=True)}
    log_N = {n: math.log(REFERENCE_SAMPLES) + log_r_N[n] for n in names}
    chance = {n: truth.break_chance(math.sqrt(kappa[n])) for n in names}
    log_T = {n: log_N[n] - truth.log_q(kappa[n]) - math.log1p(-min(chance[n], LARGEST)) for n in names}
    error = NOISE_MODEL_SD * rng.standard_normal() + NOISE_OWN_SD * rng.standard_normal()
    noise = Noise(math.log(truth.critical * REFERENCE_BATCH * truth.noise_factor) + error, NOISE_OWN_SD)
    clock_sd = CLOCK_SD / math.sqrt(ROUNDS)
    speed = {n: Speed(truth.log_q(kappa[n]) + clock_sd * rng.standard_normal(), clock_sd, 32) for n in names}
    spent, runs = 0.0, {n: LogSample(np.empty(0)) for n in names}
    fates: list[Fate] = []
    broken = dict.fromkeys(names, 0)

    def breaks(factor: float, kappa: float) -> bool:
        nonlocal spent
        broke = bool(rng.random() < truth.break_chance(factor))
        fates.append(Fate(factor, int(kappa * REFERENCE_BATCH), int(not broke), int(broke)))
        spent += BUDGET_SAMPLES if broke else 0.0
        return broke

    def run(name: str) -> None:
        nonlocal spent
        if breaks(math.sqrt(kappa[name]), kappa[name]):
            broken[name] += 1
            return
        value = log_N[name] + truth.seed_sd * rng.standard_normal()
        before, beyond = runs[name], value > math.log(BUDGET_SAMPLES)
        values = before.values if beyond else np.append(before.values, value)
        bounds = np.append(before.bounds, math.log(BUDGET_SAMPLES)) if beyond else before.bounds
        runs[name] = LogSample(values, bounds)
        spent += min((1 + PAST_TARGET) * math.exp(value), BUDGET_SAMPLES)

    def evidence(branches: dict[str, LocalRatio]) -> Evidence:
        own = {n: s for n, s in runs.items() if s.size}
        stability = Stability(tuple(fates), 1.0, REFERENCE_BATCH)
        return Evidence(arms, reference, own, branches, speed, noise, BUDGET_SAMPLES, broken, stability)

    for factor in RATES:
        spent += 0.0 if breaks(factor, 1.0) else (1 + PAST_TARGET) * REFERENCE_SAMPLES
    for _ in range(REFERENCE_SEEDS):
        run(reference)
    decision, branches = Decision(evidence({}), Rule()), {}
    shift = BRANCH_SHIFT + BRANCH_SHIFT_SD * rng.standard_normal()
    for name in decision.promising if truth.branches else []:
        batch = kappa[name] * REFERENCE_BATCH
        if name == reference or batch > REFERENCE_SAMPLES / 2:
            continue
        wrong = BRANCH_SYSTEMATIC_SD * rng.standard_normal() + BRANCH_SD * rng.standard_normal() / math.sqrt(POINTS)
        branches[name] = LocalRatio(truth.branch_slope * log_r_N[name] + shift + wrong, BRANCH_SD / math.sqrt(POINTS))
        spent += POINTS * max(REFERENCE_SAMPLES / 4, 4 * batch)
    disagreed = False
    while True:
        decision = Decision(evidence(branches), Rule())
        disagreed = disagreed or not decision.agrees
        left = {n: MOST_SEEDS - runs[n].size - broken[n] for n in names}
        chosen = [] if decision.separated else allocate(decision, left, workers)
        if not chosen:
            break
        for name in chosen:
            run(name)
    advised = decision.advised or reference
    covered = []
    for name in names:
        found, true = decision.r_T(name), log_T[name] - log_T[reference]
        if name != reference and found.low is not None and found.high is not None:
            covered.append(found.low <= math.exp(true) <= found.high)
    return Outcome(
        regret=math.exp(log_T[advised] - min(log_T.values())) - 1,
        separated=decision.separated,
        share=spent / (MOST_SEEDS * len(names) * BUDGET_SAMPLES),
        runs=sum(sample.size for sample in runs.values()) + sum(broken.values()),
        covered=covered,
        disagreed=disagreed,
    )


def _walk(sd: float, rng: np.random.Generator) -> np.ndarray:
    """A random walk over octaves both ways from the reference, by arm."""
    place = KAPPAS.index(1)
    up = np.cumsum(sd * rng.standard_normal(len(KAPPAS) - place - 1))
    down = np.cumsum(sd * rng.standard_normal(place))[::-1]
    return np.concatenate([down, [0.0], up])


def simulate(truth: Truth, procedures: int, seed: int = 0) -> list[Outcome]:
    """Independent procedures under one truth."""
    rng = np.random.default_rng(
        [
            seed,
            *(
                int(1000 * abs(x))
                for x in (
                    truth.critical,
                    truth.half,
                    truth.noise_factor,
                    truth.rough,
                    truth.branch_slope,
                    min(truth.edge, 99),
                )
            ),
        ]
    )
    return [procedure(truth, rng) for _ in range(procedures)]


def cells() -> list[tuple[str, Truth]]:
    """What the command runs."""
    found = []
    for half in (1.0, 4.0, 16.0):
        shapes = [(f"hyperbola {b:g}", Truth(b, half)) for b in (2.0, 10.0, 30.0, 100.0)]
        shapes += [("knee 16", Truth(16.0, half, knee=True))]
        shapes += [("hyperbola 10, spread .15", Truth(10.0, half, seed_sd=0.15))]
        found += shapes
        found += [
            (f"hyperbola {b:g}, noise x{factor:.2g}", Truth(b, half, noise_factor=factor))
            for b in (2.0, 10.0, 30.0)
            for factor in (1 / 3, 3.0)
        ]
        found += [(f"hyperbola 10, rough {r:g}", Truth(10.0, half, rough=r)) for r in (0.1, 0.25)]
        found += [(f"hyperbola 10, branches x{s:g}", Truth(10.0, half, branch_slope=s)) for s in (0.3, 2.0)]
        found += [(f"hyperbola 30, edge {e:g} octaves", Truth(30.0, half, edge=e)) for e in (0.75, 1.25, 1.75, 2.5)]
        found += [("hyperbola 10, no branches", replace(Truth(10.0, half), branches=False))]
        found += [
            (f"hyperbola 10, no branches, noise x{f:.2g}", Truth(10.0, half, noise_factor=f, branches=False))
            for f in (1 / 3, 3.0)
        ]
    return found


def row(name: str, truth: Truth, outcomes: list[Outcome]) -> str:
    """One line of the table."""
    regret = np.array([one.regret for one in outcomes])
    good = float(np.mean(regret <= 0.10 + 1e-9))
    quantiles = " ".join(f"{q:5.3f}" for q in np.quantile(regret, [0.5, 0.9, 0.95, 1.0]))
    covered = [hit for one in outcomes for hit in one.covered]
    return (
        f"{name:<37} {truth.half:>4g} | {good:5.1%}{'!' if good < 0.9 else ' '} {quantiles} | "
        f"{np.mean([o.separated for o in outcomes]):5.1%} {np.mean([o.share for o in outcomes]):6.1%} "
        f"{np.quantile([o.share for o in outcomes], 0.95):6.1%} {np.mean([o.runs for o in outcomes]):5.1f} | "
        f"{np.mean(covered):5.1%} {np.mean([o.disagreed for o in outcomes]):5.1%}"
    )


HEADER = f"{'r_N':<37}  B_h | within  50%   90%   95%   max | separ. share    p95  runs | cover. checks"


def _cell(procedures: int, cell: tuple[str, Truth]) -> str:
    return row(*cell, simulate(cell[1], procedures))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Simulated advices of known truth.")
    parser.add_argument("--procedures", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print(HEADER)
    with ProcessPoolExecutor(options.workers) as pool:
        for line in pool.map(partial(_cell, options.procedures), cells()):
            print(line, flush=True)


if __name__ == "__main__":
    main()
