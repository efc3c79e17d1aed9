"""Local r_N from branches: short trials that go on from a checkpoint of a reference run with another batch.

A branch of dN samples from N0 ends at a score that the reference run has after n more, n = J_ref^-1(score) - N0, with
J_ref the isotonic fit of the parent's own curve: both are evaluated on the same prompts with the same draws. The local
ratio is dN / n; a branch that ends no higher than it began needs more than any that was measured. One that ends below
where it began was shaken by the change of batch and rate: no r_N does that, so it says nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import isotonic_regression

from analysis.advise.evidence import LocalRatio
from analysis.curves import Curve, curves_of
from analysis.errors import InputError
from analysis.load import Sweep

# Scores of the last part of a branch are averaged: one evaluation alone is noisy.
END_SHARE = 0.4
# log of a local ratio that is taken as the bound where a branch gained nothing.
NO_GAIN = math.log(2.0)
# Standard deviation of log(dN / n) of one branch beside the error of its score: policies wander. That of branches of
# the default sweep about the r_N of its full runs, which model.Prior.branch_sd shares with it.
WANDER_SD = 0.30
# A score this many standard errors (of at least LEAST_SE) below where it began has fallen.
FALLEN, LEAST_SE = 2.0, 0.005
Outcome = Literal["gain", "no gain", "shaken"]


@dataclass(frozen=True)
class Branch:
    """One finished branch. moments: what became of the optimizer's moments. ratio: dN / n where there was a gain."""

    arm: str
    parent: str
    seed: int
    at_samples: float
    samples: float
    moments: str
    outcome: Outcome
    ratio: float | None
    sd: float


def local_ratio(
    parent: Curve, at_samples: float, branch: Curve, score_se: float = 0.0
) -> tuple[Outcome, float | None, float]:
    """(how it ended, dN / n, standard deviation of its logarithm) of a branch; None where there was no gain.

    branch: its evaluations at samples_trained > at_samples. score_se: standard error of one score.

    The parent gains 0.1 a 1000 samples; the branch has 0.3 after 2000 samples from 1000, where the parent has it after
    another 1000: it needs twice the samples.

    >>> parent = Curve(np.array([0.0, 1000, 2000, 3000]), np.array([0.1, 0.2, 0.3, 0.4]))
    >>> local_ratio(parent, 1000, Curve(np.array([1000.0, 3000.0]), np.array([0.2, 0.3])))[:2]
    ('gain', 2.0)
    """
    later = branch.samples_K > at_samples
    if not later.any():
        return "no gain", None, math.inf
    gone_K, score_K = branch.samples_K[later] - at_samples, branch.scores_K[later]
    last = gone_K >= (1 - END_SHARE) * gone_K[-1]
    gone, score = float(gone_K[last].mean()), float(score_K[last].mean())
    fit_K = isotonic_regression(parent.scores_K).x
    # Each level of the fit is reached in the middle of its stretch.
    levels, place = np.unique(fit_K, return_inverse=True)
    middle = np.array([parent.samples_K[place == k].mean() for k in range(len(levels))])
    if score < np.interp(at_samples, middle, levels) - FALLEN * max(score_se, LEAST_SE):
        return "shaken", None, math.inf
    if len(levels) < 2:
        return "no gain", None, math.inf
    reached = float(np.interp(score, levels, middle))
    if score > levels[-1]:
        slope = (levels[-1] - levels[-2]) / (middle[-1] - middle[-2])
        reached = float(middle[-1] + (score - levels[-1]) / slope)
    n = reached - at_samples
    if n <= 0.05 * gone:
        return "no gain", None, math.inf
    steepness = (np.interp(reached + n / 4, middle, levels) - np.interp(reached - n / 4, middle, levels)) / (n / 2)
    from_score = score_se / math.sqrt(float(last.sum())) / (steepness * n) if steepness > 0 else 1.0
    return "gain", gone / n, math.hypot(WANDER_SD, from_score)


def read_branches(branches: Sweep, parents: Sweep, arms: Mapping[tuple[Any, ...], str]) -> list[Branch]:
    """The finished branches of a sweep. arms: the candidate with (num_prompts, group_size, lr to 6 digits)."""
    try:
        own, of_parents = curves_of(branches), curves_of(parents)
    except InputError:
        return []
    found = []
    se_name = f"{branches.metric}_se"
    for trial in branches.plan.trials:
        told = trial.configured("branch")
        if not isinstance(told, dict) or trial.trial_id not in own:
            continue
        arm, parent = arms.get(arm_key(trial.axes.model_dump())), str(told.get("trial", "")).rpartition("/")[2]
        at_samples = told.get("at_samples")
        if arm is None or parent not in of_parents or not isinstance(at_samples, int | float):
            continue
        rows = branches.evals[branches.evals["trial_id"] == trial.trial_id]
        score_se = float(rows[se_name].mean()) if se_name in rows and rows[se_name].notna().any() else 0.0
        curve = own[trial.trial_id]
        outcome, ratio, sd = local_ratio(of_parents[parent], float(at_samples), curve, score_se)
        length = float(curve.samples_K[-1] - at_samples)
        found.append(
            Branch(arm, parent, trial.seed, float(at_samples), length, str(told.get("moments")), outcome, ratio, sd)
        )
    return found


def arm_key(axes: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a branch and its arm share."""
    lr = axes.get("lr")
    return (axes["num_prompts"], axes["group_size"], f"{lr:.5e}" if isinstance(lr, int | float) and lr > 0 else None)


def combined(found: Sequence[Branch]) -> LocalRatio:
    """The mean log ratio over the branches of one arm; where half of them gained nothing, a lower bound."""
    logs = np.array([math.log(branch.ratio) for branch in found if branch.ratio])
    sds = np.array([branch.sd for branch in found if branch.ratio])
    if 2 * len(logs) <= len(found):
        return LocalRatio(max([NO_GAIN, *logs]), WANDER_SD, beyond=True)
    return LocalRatio(float(logs.mean()), math.sqrt(float((sds**2).sum())) / len(logs))


def local_ratios(found: Sequence[Branch], moments: str | None = None) -> dict[str, LocalRatio]:
    """By arm, of all branches that were not shaken, or of those that treat the optimizer's moments one way."""
    kept = [branch for branch in found if moments in (None, branch.moments) and branch.outcome != "shaken"]
    return {arm: combined([b for b in kept if b.arm == arm]) for arm in dict.fromkeys(b.arm for b in kept)}
