"""Do the pieces of evidence agree? Predictions of each from the others, before the advice rests on any of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2, norm

from analysis.advise.evidence import Evidence
from analysis.advise.model import FITTED, NO_NOISE, WARY, Posterior, Prior, by_learner, posterior, without_runs_of
from analysis.penalty import LogSample

DISAGREE = 0.01
# Giving up the noise scale alone costs few runs; a factor 3 shows at this level where a hundredth would pass it.
DISAGREE_NOISE = 0.05
NOISE_CHECK = "the noise scale that branches and runs follow, against the one measured"


@dataclass(frozen=True)
class Check:
    """One comparison. z: standard deviations of log N* above what the other evidence predicts, by arm. p: of all.

    Of the noise scale z is that of its logarithm, under "noise scale".
    """

    name: str
    z: dict[str, float]
    p: float

    @property
    def agrees(self) -> bool:
        """Whether the difference could be chance."""
        return self.p >= (DISAGREE_NOISE if self.name == NOISE_CHECK else DISAGREE)


def prior_left(checks: list[Check]) -> Prior:
    """The prior that can still be believed."""
    wrong = {one.name for one in checks if not one.agrees}
    return FITTED if not wrong else NO_NOISE if wrong == {NOISE_CHECK} else WARY


def check(evidence: Evidence, prior: Prior = FITTED) -> list[Check]:
    """The checks for which there is something to compare."""
    reference = evidence.of(evidence.reference).learns_as
    ran = by_learner(evidence)
    others = [learner for learner in ran if learner != reference]
    found = []
    if evidence.noise is not None and (others or evidence.branches):
        found.append(_noise(evidence, prior))
    if reference in ran and evidence.noise is not None:
        alone = replace(evidence, runs=_of(evidence, reference), branches={})
        if evidence.branches:
            found.append(_branches(evidence, posterior(alone, prior), prior))
        if others:
            found.append(_runs("runs against the noise scale", evidence, alone, others, prior))
    if reference in ran and others and evidence.branches:
        alone = replace(evidence, runs=_of(evidence, reference))
        found.append(_runs("runs against noise scale and branches", evidence, alone, others, prior))
    if len(others) > 1:
        found.append(_each(evidence, others, prior))
    return found


def _noise(evidence: Evidence, prior: Prior) -> Check:
    """The noise scale fitted to branches and runs, whatever was measured, against what was."""
    noise = evidence.noise
    assert noise is not None
    sd = math.hypot(noise.sd, prior.noise_sd)
    wide = replace(prior, noise_sd=NO_NOISE.noise_sd)
    mean, var = _noise_moments(posterior(evidence, wide))
    before, var_before = _noise_moments(posterior(replace(evidence, runs={}, branches={}), wide))
    if var >= 0.9 * var_before:
        return Check(NOISE_CHECK, {"noise scale": 0.0}, 1.0)
    # The wide prior is divided out, both as Gaussians.
    own_var = 1 / (1 / var - 1 / var_before)
    fitted = own_var * (mean / var - before / var_before)
    z = (fitted - noise.log_scale) / math.hypot(math.sqrt(own_var), sd)
    return Check(NOISE_CHECK, {"noise scale": z}, 2 * float(norm.sf(abs(z))))


def _noise_moments(post: Posterior) -> tuple[float, float]:
    """Mean and variance of log B_n."""
    mean = float(post.weight_K @ post.noise_K)
    return mean, float(post.weight_K @ (post.noise_K - mean) ** 2)


def _of(evidence: Evidence, learner: str) -> dict[str, LogSample]:
    return {arm: run for arm, run in evidence.runs.items() if evidence.of(arm).learns_as == learner}


def _branches(evidence: Evidence, predicted: Posterior, prior: Prior) -> Check:
    """Local ratios against the noise scale."""
    reference = evidence.of(evidence.reference).learns_as
    arms = [arm for arm, local in evidence.branches.items() if not local.beyond]
    if not arms:
        return Check("branches against the noise scale", {}, 1.0)
    w_OA = np.array([predicted.contrast(evidence.of(arm).learns_as, reference) for arm in arms])
    value_O = np.array([evidence.branches[arm].log_r_N for arm in arms]) - prior.branch_shift
    own_OO = np.diag([evidence.branches[arm].sd ** 2 + prior.branch_sd**2 for arm in arms]) + prior.branch_shift_sd**2
    z_O, p = _joint(predicted, w_OA, value_O, own_OO)
    return Check("branches against the noise scale", dict(zip(arms, z_O.tolist(), strict=True)), p)


def _runs(name: str, evidence: Evidence, rest: Evidence, learners: list[str], prior: Prior) -> Check:
    """Full runs of all learners at once against the rest; where one only has bounds, by the probability of those."""
    predicted, pooled, samples = posterior(rest, prior), posterior(evidence, prior).seed_sd, by_learner(evidence)
    means, own, known, z, worst = [], [], [], {}, 1.0
    for learner in learners:
        values, bounds = samples[learner].values, samples[learner].bounds
        if len(values):
            known.append(learner)
            means.append(float(values.mean()))
            own.append(pooled**2 / len(values))
        else:
            mean, sd = predicted.moments(predicted.contrast(learner))
            z[learner] = (float(bounds.min()) - mean) / math.hypot(sd, pooled)
            worst = min(worst, float(norm.sf(z[learner])) * 2 * len(learners))
    p = 1.0
    if known:
        w_OA = np.array([predicted.contrast(learner) for learner in known])
        z_O, p = _joint(predicted, w_OA, np.array(means), np.diag(own))
        z |= dict(zip(known, z_O.tolist(), strict=True))
    return Check(name, {learner: z[learner] for learner in learners}, min(p, worst))


def _each(evidence: Evidence, learners: list[str], prior: Prior) -> Check:
    """Each learner's runs against everything but them; p is the smallest, times their number."""
    z: dict[str, float] = {}
    smallest = 1.0
    for learner in learners:
        one = _runs("", evidence, without_runs_of(evidence, learner), [learner], prior)
        z |= one.z
        smallest = min(smallest, one.p)
    return Check("each arm's runs against all else", z, min(smallest * len(learners), 1.0))


def _joint(predicted: Posterior, w_OA: np.ndarray, value_O: np.ndarray, own_OO: np.ndarray) -> tuple[np.ndarray, float]:
    """(z of each observation, p of all by chi-square) under the mixture's mean and covariance and their own errors'."""
    mean_KO = predicted.mean_KA @ w_OA.T
    mean_O = predicted.weight_K @ mean_KO
    cov_KOO = w_OA @ predicted.cov_KAA @ w_OA.T
    off_KO = mean_KO - mean_O
    cov_OO = np.tensordot(predicted.weight_K, cov_KOO + off_KO[:, :, None] * off_KO[:, None, :], axes=1)
    cov_OO += own_OO
    error_O = value_O - mean_O
    distance = float(error_O @ np.linalg.solve(cov_OO, error_O))
    return error_O / np.sqrt(np.diag(cov_OO)), float(chi2.sf(distance, len(value_O)))
