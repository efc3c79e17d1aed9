"""The posterior of log N* of every candidate, given the noise scale, branches and full runs.

y_a = log N*(a) = y_ref + log h_a + delta_a. h: the steps that signal and noise alone need times the samples of one,
1 + between/P + within/(P G) over |G|^2 (McCandlish et al., arXiv:1812.06162), which is the hyperbola 1 + B/B_n where
noise between prompts is not known apart. delta is what the formula does not know: a Brownian motion in log2(B/B_ref)
on either side of the reference, one more in log2(G/G_ref), and an offset for another family than the reference's.
Branches of one reference run err together: each shows log r_N + b, with b the same unknown for all of them.

A grid over (log B_n, spread of log N* over seeds, roughness of delta) makes everything else Gaussian: observations are
taken in one by one, and their likelihoods weigh the nodes. A run that did not reach its target is taken in by matching
moments (as in expectation propagation), which is exact for one bound and close for several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr, logsumexp

from analysis.advise.evidence import Evidence
from analysis.penalty import LogSample

UNKNOWN_SD = 2.5
UNKNOWN_BATCHES = 10.0
# The grid of log B_n: its spacing, the most nodes, and how far beyond the candidates' batches it says anything.
SPACING, MOST_NODES, BELOW, ABOVE = 0.2, 48, 3.0, 5.0


@dataclass(frozen=True)
class Prior:
    """Standard deviations on the log scale, before any run.

    noise_sd: of the B_n that N* follows about the one measured. octave_sd: of log r_N about log h, per square root of
    an octave. size_sd: the same for an octave of the group size. The likelihood of the committed sweeps default,
    second_start, ppo and actor_critic together is highest at octave_sd = 0.10 and falls by less than 0.5 from noise_sd
    = 0.2 to 0.35; that of matched_pairs is highest at size_sd = 0.2. roughness: (factor of octave_sd, its probability):
    each of these sweeps alone is likeliest between 0.05 and 0.16.
    family_sd: of arms that nothing is known of but their own runs. branch_shift, branch_shift_sd: mean and spread of b,
    by which the local ratios of one reference run exceed the r_N of the whole run; branch_sd: what is left of each.
    Where eight sets of branches were beside full sweeps, 20 of 23 ratios were too high, by 0.5 on average (LOG.md).
    seed_sd, seed_df: of the spread over seeds, 0.06 to 0.12 in those sweeps.
    """

    noise_sd: float = 0.35
    octave_sd: float = 0.10
    roughness: tuple[tuple[float, float], ...] = ((0.45, 0.25), (1.0, 0.5), (2.2, 0.25))
    size_sd: float = 0.20
    family_sd: float = 1.0
    branch_shift: float = 0.45
    branch_shift_sd: float = 0.40
    branch_sd: float = 0.30
    seed_sd: float = 0.12
    seed_df: float = 4.0


FITTED = Prior()
# Once r_N follows another noise scale than the one measured: branches and runs say which.
NO_NOISE = Prior(noise_sd=2.5)
# Once prediction and runs disagree: nothing but runs says much.
WARY = Prior(noise_sd=2.5, octave_sd=0.5, size_sd=0.5, branch_shift_sd=1.0, branch_sd=0.6)


@dataclass(frozen=True)
class Posterior:
    """A mixture of Gaussians over the log N* of the A learners, by node K.

    mean_KA, cov_KAA; weight_K sums to 1; sd_K: spread over seeds, noise_K: log B_n. log_evidence: of all observations.
    """

    learners: tuple[str, ...]
    mean_KA: np.ndarray
    cov_KAA: np.ndarray
    weight_K: np.ndarray
    sd_K: np.ndarray
    noise_K: np.ndarray
    log_evidence: float

    def index(self, learner: str) -> int:
        """Its place among the learners."""
        return self.learners.index(learner)

    def contrast(self, learner: str, other: str | None = None) -> np.ndarray:
        """The weights w_A of y(learner) - y(other), or of y(learner)."""
        w_A = np.zeros(len(self.learners))
        w_A[self.index(learner)] += 1
        if other is not None:
            w_A[self.index(other)] -= 1
        return w_A

    def moments(self, w_A: np.ndarray) -> tuple[float, float]:
        """Mean and standard deviation of w . y."""
        mean_K = self.mean_KA @ w_A
        var_K = np.einsum("kab,a,b->k", self.cov_KAA, w_A, w_A)
        mean = float(self.weight_K @ mean_K)
        return mean, math.sqrt(max(float(self.weight_K @ (var_K + (mean_K - mean) ** 2)), 0.0))

    @property
    def seed_sd(self) -> float:
        """The posterior mean spread of log N* over seeds."""
        return float(self.weight_K @ self.sd_K)

    def draws(self, num: int, rng: np.random.Generator) -> np.ndarray:
        """y of each learner, shape [num, A]."""
        count_K = rng.multinomial(num, self.weight_K)
        used = np.flatnonzero(count_K)
        root_KAA = np.linalg.cholesky(self.cov_KAA[used] + 1e-12 * np.eye(len(self.learners)))
        node_D = np.repeat(np.arange(len(used)), count_K[used])
        z_DA = rng.standard_normal((num, len(self.learners)))
        found: np.ndarray = self.mean_KA[used][node_D] + np.einsum("dab,db->da", root_KAA[node_D], z_DA)
        return found


def log_h(evidence: Evidence, log_scale_K: np.ndarray) -> np.ndarray:
    """log of samples to the target over the reference's at each noise scale, by learner, shape [K, A].

    (B + B_n) / (B_ref + B_n); where a share f of the noise lies between prompts, that of another group size G is
    B_n (f G/G_ref + 1 - f).

    >>> from analysis.advise.evidence import Candidate, Noise
    >>> own = Candidate("a", 8, 8, "a"), Candidate("b", 32, 8, "b"), Candidate("c", 4, 16, "c")
    >>> noise = Noise(math.log(64), 0.1, between_frac=0.5)
    >>> np.exp(log_h(Evidence(own, "a", noise=noise), np.log([64.0]))).round(3).tolist()
    [[1.0, 2.5, 1.25]]
    """
    reference = evidence.of(evidence.of(evidence.reference).learns_as)
    between = evidence.noise.between_frac if evidence.noise and evidence.noise.between_frac is not None else 0.0
    scale_K = np.exp(log_scale_K)

    def samples(learner: str) -> np.ndarray:
        arm = evidence.of(learner)
        own = between * arm.group_size / reference.group_size + 1 - between
        return np.asarray(np.log(arm.train_batch + own * scale_K))

    centre_K = samples(reference.arm)
    return np.stack([samples(learner) - centre_K for learner in evidence.learners], axis=1)


def prior_covariance(evidence: Evidence, prior: Prior, rough: float = 1.0) -> np.ndarray:
    """Of delta where octave_sd is `rough` times the prior's, by learner, shape [A, A]; the reference's row is 0."""
    reference = evidence.of(evidence.of(evidence.reference).learns_as)
    arms = [evidence.of(learner) for learner in evidence.learners]
    batch_A = np.log2([arm.train_batch / reference.train_batch for arm in arms])
    size_A = np.log2([arm.group_size / reference.group_size for arm in arms])
    known = evidence.noise is not None and evidence.noise.between_frac is not None
    # Where the split is not known another group size is as good as another family.
    families = [arm.family if known else (*arm.family, arm.group_size) for arm in arms]
    own = families[arms.index(reference)]
    other = np.array([[a == b != own for b in families] for a in families])
    found = (rough * prior.octave_sd) ** 2 * _brownian(batch_A) + prior.size_sd**2 * _brownian(size_A)
    return np.asarray(found + prior.family_sd**2 * other)


def _brownian(x_A: np.ndarray) -> np.ndarray:
    """Cov of a Brownian motion that starts at 0 both ways."""
    same = np.sign(x_A)[:, None] * np.sign(x_A)[None, :] > 0
    return np.where(same, np.minimum(np.abs(x_A)[:, None], np.abs(x_A)[None, :]), 0.0)


def _log_density(z_K: np.ndarray) -> np.ndarray:
    """Of the standard normal."""
    return np.asarray(-(z_K**2) / 2 - 0.5 * math.log(2 * math.pi))


class _Filter:
    """The Gaussians of all nodes while observations w . y = value are taken in."""

    def __init__(self, mean_KA: np.ndarray, cov_KAA: np.ndarray, log_weight_K: np.ndarray) -> None:
        self.mean_KA, self.cov_KAA, self.log_weight_K = mean_KA, cov_KAA, log_weight_K

    def observe(self, w_A: np.ndarray, value: float, var_K: np.ndarray) -> None:
        gain_KA, mean_K, total_K = self._along(w_A, var_K)
        self.log_weight_K += _log_density((value - mean_K) / np.sqrt(total_K)) - np.log(total_K) / 2
        self._update(gain_KA, (value - mean_K) / total_K, 1 / total_K)

    def observe_beyond(self, w_A: np.ndarray, bound: float, var_K: np.ndarray) -> None:
        """A value of which only is known that it exceeds the bound: the moments of the cut Gaussian."""
        gain_KA, mean_K, total_K = self._along(w_A, var_K)
        z_K = (mean_K - bound) / np.sqrt(total_K)
        log_p_K = log_ndtr(z_K)
        hazard_K = np.exp(_log_density(z_K) - log_p_K)
        self.log_weight_K += log_p_K
        self._update(gain_KA, hazard_K / np.sqrt(total_K), hazard_K * (hazard_K + z_K) / total_K)

    def _along(self, w_A: np.ndarray, var_K: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        gain_KA = self.cov_KAA @ w_A
        return gain_KA, self.mean_KA @ w_A, gain_KA @ w_A + var_K

    def _update(self, gain_KA: np.ndarray, slope_K: np.ndarray, curvature_K: np.ndarray) -> None:
        self.mean_KA += gain_KA * slope_K[:, None]
        self.cov_KAA -= gain_KA[:, :, None] * gain_KA[:, None, :] * curvature_K[:, None, None]


def posterior(evidence: Evidence, prior: Prior = FITTED) -> Posterior:
    """What the evidence says of log N* of each learner."""
    log_scale_K, sd_K, rough_K, log_prior_K = _nodes(evidence, prior)
    learners = evidence.learners
    runs = by_learner(evidence)
    values = np.concatenate([sample.values for sample in runs.values()] + [np.empty(0)])
    bounds = np.concatenate([sample.bounds for sample in runs.values()] + [np.empty(0)])
    centre = float(np.mean(values)) if len(values) else float(bounds.max()) if len(bounds) else 9.0
    # Nothing is known of the reference's N* itself: ten e-folds. The shift of branches is one unknown more.
    of_rough = np.stack([prior_covariance(evidence, prior, factor) + 100.0 for factor, _ in prior.roughness])
    of_rough = np.pad(of_rough, ((0, 0), (0, 1), (0, 1)))
    of_rough[:, -1, -1] = prior.branch_shift_sd**2
    mean_KA = np.pad(centre + log_h(evidence, log_scale_K), ((0, 0), (0, 1)), constant_values=prior.branch_shift)
    state = _Filter(mean_KA, of_rough[rough_K], log_prior_K)
    for learner, sample in runs.items():
        w_A = np.array([*(float(learner == other) for other in learners), 0.0])
        if n := len(sample.values):
            squares = float(((sample.values - sample.values.mean()) ** 2).sum())
            state.observe(w_A, float(sample.values.mean()), sd_K**2 / n)
            state.log_weight_K += -(n - 1) * np.log(sd_K) - squares / (2 * sd_K**2)
        for bound in sample.bounds:
            state.observe_beyond(w_A, float(bound), sd_K**2)
    reference = evidence.of(evidence.reference).learns_as
    for arm, local in evidence.branches.items():
        own = evidence.of(arm).learns_as
        w_A = np.array([*(float(own == other) - float(other == reference) for other in learners), 1.0])
        var_K = np.full(len(sd_K), local.sd**2 + prior.branch_sd**2)
        (state.observe_beyond if local.beyond else state.observe)(w_A, local.log_r_N, var_K)
    highest = float(state.log_weight_K.max())
    weight_K = np.exp(state.log_weight_K - highest)
    total = float(weight_K.sum())
    return Posterior(
        learners,
        state.mean_KA[:, :-1],
        state.cov_KAA[:, :-1, :-1],
        weight_K / total,
        sd_K,
        log_scale_K,
        highest + math.log(total),
    )


def by_learner(evidence: Evidence) -> dict[str, LogSample]:
    """log N* of the full runs of each learner, those of arms that differ in settings of the system alone together."""
    found: dict[str, LogSample] = {}
    for arm, sample in evidence.runs.items():
        learner = evidence.of(arm).learns_as
        before = found.get(learner, LogSample(np.empty(0)))
        found[learner] = LogSample(
            np.concatenate([before.values, sample.values]), np.concatenate([before.bounds, sample.bounds])
        )
    return found


def _nodes(evidence: Evidence, prior: Prior) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(log B_n, spread over seeds, place of the roughness, log of their prior weight) of the K nodes."""
    noise = evidence.noise
    if noise is None:
        centre, sd = math.log(UNKNOWN_BATCHES * evidence.of(evidence.reference).train_batch), UNKNOWN_SD
    else:
        centre, sd = noise.log_scale, math.hypot(noise.sd, prior.noise_sd)
    batches = [candidate.train_batch for candidate in evidence.candidates]
    # Beyond these limits all is signal, or all is noise, whatever B_n is.
    low = max(centre - 3.5 * sd, min(math.log(min(batches)) - BELOW, centre - sd))
    high = min(centre + 3.5 * sd, max(math.log(max(batches)) + ABOVE, centre + sd))
    log_scale_X = np.linspace(low, high, int(np.clip(math.ceil((high - low) / SPACING), 9, MOST_NODES)))
    # The density of log sd where sd^2 is a scaled inverse chi-square with prior.seed_df degrees of freedom.
    log_sd_S = math.log(prior.seed_sd) + np.linspace(-1.5, 1.5, 9)
    log_p_S = -prior.seed_df * (log_sd_S - math.log(prior.seed_sd))
    log_p_S -= prior.seed_df * prior.seed_sd**2 / (2 * np.exp(2 * log_sd_S))
    log_p_R = np.log([probability for _, probability in prior.roughness])
    x_K, s_K, r_K = (grid.ravel() for grid in np.indices((len(log_scale_X), len(log_sd_S), len(log_p_R))))
    log_p_K = -(((log_scale_X[x_K] - centre) / sd) ** 2) / 2 + log_p_S[s_K] + log_p_R[r_K]
    return log_scale_X[x_K], np.exp(log_sd_S[s_K]), r_K, log_p_K - float(logsumexp(log_p_K))


def without_runs_of(evidence: Evidence, learner: str) -> Evidence:
    """The evidence without the full runs of one learner."""
    return replace(
        evidence, runs={arm: run for arm, run in evidence.runs.items() if evidence.of(arm).learns_as != learner}
    )
