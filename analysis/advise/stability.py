"""How likely a run breaks: at a rate too high learning collapses, and the target is never reached.

The chance is background + (1 - background) / (1 + exp(-(x - edge) / width)), with x = log2(lr) - exponent *
log2(B / B_ref): it grows with the rate, and a larger batch bears at least as high a rate. The posterior is a grid over
edge, width, exponent and background; every finished run of any rate and batch that the advice has seen is evidence.
The expected time to the target of an arm that breaks with probability f is T / (1 - f): a broken run is noticed when it
should have arrived, and begun again (the expected running time of Hansen et al., arXiv:1603.08785, with that limit).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.special import expit, logsumexp

from analysis.curves import Curve
from analysis.penalty import LogSample
from analysis.study import Study, Trial

Outcome = Literal["arrived", "broke", "late"]

# The grid. The edge lies anywhere from the reference's rate to OCTAVES above it, or one above what a run has borne. In
# the committed sweeps default, ppo, digit_sums and digit_sums_ppo it lies 1.5 to 2.8 above the file's.
OCTAVES, STEP = 4.0, 0.1
WIDTHS, EXPONENTS, BACKGROUNDS = (0.08, 0.16, 0.32), (0.0, 0.125, 0.25, 0.5), (0.0, 0.02, 0.1)
BACKGROUND_WEIGHTS = (0.8, 0.15, 0.05)
# A chance of 1 would make every time infinite, and means of them say nothing.
LARGEST = 0.999
# A curve has fallen that lost this share of what it had gained, and more than this many standard errors.
LOST, ERRORS, LEAST_SE, POINTS = 0.1, 3.0, 0.005, 3


@dataclass(frozen=True)
class Fate:
    """What became of the finished runs of one arm: how many reached the target, how many broke."""

    lr: float
    train_batch: int
    arrived: int
    broke: int


def fell(curve: Curve, score_se: float = 0.0) -> bool:
    """Whether a curve ends below its best by more than noise: the mean of three evaluations, against the best such.

    >>> fell(Curve(np.arange(5.0), np.array([0.3, 0.5, 0.6, 0.61, 0.6])))
    False
    >>> fell(Curve(np.arange(5.0), np.array([0.3, 0.31, 0.2, 0.0, 0.0])))
    True
    """
    points = min(POINTS, len(curve.scores_K))
    means = np.convolve(curve.scores_K, np.full(points, 1 / points), mode="valid")
    best, last = max(float(means.max()), float(curve.scores_K[0])), float(means[-1])
    gained = best - float(curve.scores_K[0])
    return best - last > max(LOST * gained, ERRORS * max(score_se, LEAST_SE))


@dataclass(frozen=True)
class Stability:
    """The posterior of the edge, given what became of runs. lr_ref, batch_ref: the reference's."""

    fates: tuple[Fate, ...]
    lr_ref: float
    batch_ref: int

    @cached_property
    def _nodes(self) -> tuple[np.ndarray, ...]:
        """(edge in octaves above lr_ref, width, exponent, background, weight) of the K nodes."""
        borne = max((math.log2(fate.lr / self.lr_ref) for fate in self.fates if fate.arrived), default=0.0)
        edges = np.arange(0.0, max(OCTAVES, borne + 1) + STEP / 2, STEP)
        edge_K, width_K, exponent_K, place_K = (
            grid.ravel() for grid in np.meshgrid(edges, WIDTHS, EXPONENTS, range(len(BACKGROUNDS)), indexing="ij")
        )
        background_K = np.array(BACKGROUNDS)[place_K]
        log_p_K = np.log(np.array(BACKGROUND_WEIGHTS)[place_K])
        for fate in self.fates:
            f_K = self._chance(fate.lr, fate.train_batch, edge_K, width_K, exponent_K, background_K)
            log_p_K = log_p_K + fate.broke * np.log(f_K) + fate.arrived * np.log1p(-f_K)
        return edge_K, width_K, exponent_K, background_K, np.exp(log_p_K - logsumexp(log_p_K))

    def _chance(self, lr: float, train_batch: int, *nodes: np.ndarray) -> np.ndarray:
        edge_K, width_K, exponent_K, background_K = nodes
        x_K = math.log2(lr / self.lr_ref) - exponent_K * math.log2(train_batch / self.batch_ref)
        f_K = background_K + (1 - background_K) * expit((x_K - edge_K) / width_K)
        return np.asarray(np.clip(f_K, 1e-9, LARGEST))

    def draws(self, arms: Sequence[tuple[float, int]], num: int, rng: np.random.Generator) -> np.ndarray:
        """The chance that a run of each (lr, B) breaks, shape [num, arms]."""
        *nodes, weight_K = self._nodes
        chosen = rng.choice(len(weight_K), size=num, p=weight_K)
        return np.stack([self._chance(lr, batch, *nodes)[chosen] for lr, batch in arms], axis=1)


def outcome(trial: Trial, diverged: bool, score_se: float) -> Outcome:
    """What became of a finished run: late is one that had not fallen when its samples were used."""
    if trial.crossing.censored != "right":
        return "arrived"
    return "broke" if diverged or fell(trial.curve, score_se) else "late"


class Outcomes:
    """What became of the finished runs of a study, by arm."""

    def __init__(self, study: Study) -> None:
        self.study = study
        rows, se_name = study.sweep.trials, f"{study.sweep.metric}_se"
        evals = study.sweep.evals
        known = se_name in evals and evals[se_name].notna().any()
        se = evals.groupby("trial_id")[se_name].mean().fillna(0.0).to_dict() if known else {}
        self.of: dict[str, list[tuple[Trial, Outcome]]] = {}
        for trial in study.trials:
            diverged = bool(rows.loc[trial.trial_id, "status"] == "diverged")
            self.of.setdefault(trial.arm, []).append(
                (trial, outcome(trial, diverged, float(se.get(trial.trial_id, 0.0))))
            )

    def count(self, arm: str, what: Outcome) -> int:
        """Runs of an arm that came to this."""
        return sum(found == what for _, found in self.of.get(arm, []))

    def samples(self, arm: str) -> LogSample:
        """log N* of the runs that did not break: how late the others would have been is not known of those."""
        found = self.study.samples["interpolated"][arm]
        late = [max(trial.bound, 1.0) for trial, what in self.of.get(arm, []) if what == "late"]
        return replace(found, bounds=np.log(np.array(late))) if len(found.bounds) else found

    def stability(self) -> Stability | None:
        """The posterior of the edge; None where the rates are not known."""
        axes = self.study.sweep.arms
        lr, batch = axes["lr"].to_dict(), axes["train_batch"].to_dict()
        if not all(isinstance(rate, int | float) and rate > 0 for rate in lr.values()):
            return None
        fates = [Fate(lr[arm], batch[arm], self.count(arm, "arrived"), self.count(arm, "broke")) for arm in self.of]
        return Stability(tuple(fates), lr[self.study.reference], batch[self.study.reference])
