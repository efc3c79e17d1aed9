"""Where runs break: the posterior of the edge, and what a decision makes of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.advise.decide import Decision, Rule
from analysis.advise.evidence import Candidate, Evidence, Noise, Speed
from analysis.advise.simulate import Truth, simulate
from analysis.advise.stability import Fate, Stability, fell
from analysis.curves import Curve
from analysis.penalty import LogSample

LR = 4e-4


def chances(stability: Stability, *arms: tuple[float, int]) -> list[float]:
    """Posterior means at (octaves above LR, B)."""
    rates = [(LR * 2**octaves, batch) for octaves, batch in arms]
    return stability.draws(rates, 20_000, np.random.default_rng(0)).mean(axis=0).tolist()


def test_the_edge_lies_between_what_arrived_and_what_broke() -> None:
    """Five runs each at 0, 1 and 3 octaves of one batch; 3 broke: 2 in between is as likely as not."""
    fates = (Fate(LR, 64, 5, 0), Fate(LR * 2, 64, 5, 0), Fate(LR * 8, 64, 0, 5))
    low, middle, high = chances(Stability(fates, LR, 64), (0.5, 64), (2, 64), (3.5, 64))
    assert low < 0.02 and 0.35 < middle < 0.65 and high > 0.95


def test_a_larger_batch_bears_at_least_as_high_a_rate() -> None:
    fates = (Fate(LR, 64, 5, 0), Fate(LR * 4, 64, 0, 5))
    small, large = chances(Stability(fates, LR, 64), (2, 64), (2, 1024))
    assert small > 0.9 and 0.3 < large < small - 0.1


def test_nothing_seen_leaves_high_rates_open_and_the_file_s_nearly_safe() -> None:
    own, far = chances(Stability((Fate(LR, 64, 3, 0),), LR, 64), (0, 64), (3, 512))
    assert own < 0.03 and 0.3 < far < 0.8


def test_the_odd_run_that_breaks_well_below_the_edge_is_background() -> None:
    """1 of 20 at the reference, 0 of 10 at 1 octave: a rate of some percent at either, no edge between them."""
    fates = (Fate(LR, 64, 19, 1), Fate(LR * 2, 64, 10, 0))
    at_0, at_1 = chances(Stability(fates, LR, 64), (0, 64), (1, 64))
    assert 0.01 < at_0 < 0.1 and 0.01 < at_1 < 0.12


@pytest.mark.parametrize(
    ("scores", "fallen"),
    [
        ([0.3, 0.31, 0.1, 0.0, 0.0, 0.0], True),  # collapsed at once
        ([0.3, 0.5, 0.7, 0.6, 0.5, 0.4], True),  # collapsed on the way
        ([0.3, 0.4, 0.5, 0.55, 0.6, 0.62], False),  # late
        ([0.3, 0.5, 0.62, 0.61, 0.62, 0.61], False),  # at its ceiling
        ([0.3, 0.302, 0.298, 0.301, 0.3, 0.299], False),  # no movement but noise
        ([0.3], False),
    ],
)
def test_what_has_fallen(scores: list[float], fallen: bool) -> None:
    assert fell(Curve(np.arange(float(len(scores))), np.array(scores))) is fallen


ARMS = tuple(Candidate(f"P{p}", p, 8, f"P{p}", lr=LR * math.sqrt(p / 4)) for p in (4, 8, 16, 32))
SPEED = {"P4": Speed(0.0, 0.01), "P8": Speed(0.4, 0.01), "P16": Speed(0.6, 0.01), "P32": Speed(3.0, 0.01)}


def runs(**samples: tuple[float, ...]) -> dict[str, LogSample]:
    return {arm: LogSample(np.log(np.array(values))) for arm, values in samples.items()}


def test_an_arm_of_which_the_one_run_broke_is_not_taken_for_the_fastest() -> None:
    """P32 is 20 times as fast and has no N*: whatever it is, runs of it do not arrive."""
    fates = (Fate(LR, 32, 3, 0), Fate(2 * LR, 32, 1, 0), Fate(ARMS[3].lr or 0, 256, 0, 1))
    noise = Noise(math.log(500), 0.1)
    known = Evidence(ARMS, "P4", runs(P4=(3000, 3100, 2900)), speed=SPEED, noise=noise, budget_samples=8192)
    blind = Decision(known, Rule())
    assert blind.leader == "P32" and blind.probability_best["P32"] > 0.9
    seeing = Decision(replace(known, broke={"P32": 1}, stability=Stability(fates, LR, 32)), Rule())
    assert seeing.breaks("P32").estimate > 0.5  # type: ignore[operator]
    assert seeing.breaks("P8").estimate < 0.1  # type: ignore[operator]
    assert seeing.mean_log_T["P32"] > blind.mean_log_T["P32"] + 1


def test_time_counts_the_runs_that_break() -> None:
    """Of one posterior draw each: log T - log(1 - f)."""
    stability = Stability((Fate(LR, 32, 3, 0), Fate(8 * LR, 32, 0, 2)), LR, 32)
    evidence = Evidence(ARMS, "P4", runs(P4=(3000, 3100)), speed=SPEED, stability=stability)
    decision = Decision(evidence, Rule())
    expected_DA = decision.log_N - decision.log_q - np.log1p(-decision.break_chance)
    assert decision.log_T == pytest.approx(expected_DA)
    assert float(decision.break_chance.max()) < 1


@pytest.mark.parametrize("truth", [Truth(30, 16, edge=1.25), Truth(30, 4, edge=2.5)], ids=str)
def test_simulated_advices_stay_below_the_edge(truth: Truth) -> None:
    """An advice that took what arrived once for what arrives would be at 2 to 10 times the least time."""
    outcomes = simulate(truth, 8)
    assert np.mean([one.regret <= 0.1 for one in outcomes]) >= 0.75
