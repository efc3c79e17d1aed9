"""From the posterior to a decision: who is fastest, how sure that is, and who could still change it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis.advise.checks import Check, check, prior_left
from analysis.advise.evidence import Evidence
from analysis.advise.model import Posterior, Prior, posterior
from analysis.penalty import Interval

NUM_DRAWS = 4000
FEWEST_RUNS = 2
# An arm that is this unlikely to be faster by more than the tolerance is no challenger.
NO_CHALLENGER = 0.005
# An arm that reaches the target within its budget with no more than this probability is not run for it.
OUT_OF_REACH = 0.05


@dataclass(frozen=True)
class Rule:
    """When an advice stands. runs_needed: full runs at the target before an arm is advised."""

    tolerance: float = 0.10
    confidence: float = 0.95
    runs_needed: int = FEWEST_RUNS


class Decision:
    """What the evidence says of r_T. Draws are seeded: the same evidence gives the same numbers."""

    def __init__(self, evidence: Evidence, rule: Rule, prior: Prior | None = None) -> None:
        self.evidence, self.rule = evidence, rule
        self.checks: list[Check] = check(evidence) if prior is None else []
        self.agrees = all(one.agrees for one in self.checks)
        self.prior = prior or prior_left(self.checks)

    @cached_property
    def posterior(self) -> Posterior:
        """Of log N*, with the prior that the checks leave."""
        return posterior(self.evidence, self.prior)

    @cached_property
    def timed(self) -> list[str]:
        """The candidates of which the speed is known: only those have an r_T."""
        return [c.arm for c in self.evidence.candidates if c.arm in self.evidence.speed]

    @cached_property
    def log_N(self) -> np.ndarray:
        """Draws of log N* of every candidate, shape [D, candidates]."""
        draws_DA = self.posterior.draws(NUM_DRAWS, np.random.default_rng(0))
        return draws_DA[:, [self.posterior.index(c.learns_as) for c in self.evidence.candidates]]

    @cached_property
    def log_q(self) -> np.ndarray:
        """Draws of log q of the timed candidates, shape [D, timed]."""
        rng, speed = np.random.default_rng(1), self.evidence.speed
        columns = []
        for arm in self.timed:
            error = rng.standard_normal(NUM_DRAWS)
            df = speed[arm].df
            if 0 < df < math.inf:
                error = error / np.sqrt(rng.chisquare(df, NUM_DRAWS) / df)
            columns.append(speed[arm].log_q + speed[arm].sd * error)
        return np.stack(columns, axis=1) if columns else np.empty((NUM_DRAWS, 0))

    @cached_property
    def break_chance(self) -> np.ndarray:
        """Draws of the chance that a run of a candidate breaks, shape [D, candidates]; 0 where rates are not known."""
        own, stability = self.evidence.candidates, self.evidence.stability
        known = [(c.lr, c.train_batch) for c in own if c.lr is not None]
        if stability is None or len(known) < len(own):
            return np.zeros((NUM_DRAWS, len(own)))
        return stability.draws(known, NUM_DRAWS, np.random.default_rng(3))

    @cached_property
    def log_T_arrived(self) -> np.ndarray:
        """Draws of log T of runs that arrive, of the timed candidates, shape [D, timed]."""
        return self.log_N[:, self._timed_places] - self.log_q

    @cached_property
    def log_T(self) -> np.ndarray:
        """Draws of log T of the timed candidates, those runs included that break on the way, shape [D, timed]."""
        return self.log_T_arrived - np.log1p(-self.break_chance[:, self._timed_places])

    @cached_property
    def _timed_places(self) -> list[int]:
        names = [c.arm for c in self.evidence.candidates]
        return [names.index(arm) for arm in self.timed]

    @cached_property
    def mean_log_T(self) -> dict[str, float]:
        """Posterior mean of log T."""
        return dict(zip(self.timed, self.log_T.mean(axis=0).tolist(), strict=True))

    def reached(self, arm: str) -> int:
        """Full runs that reached the target, of the arm or of one that differs in settings of the system alone."""
        learner = self.evidence.of(arm).learns_as
        runs = self.evidence.runs.items()
        return sum(len(run.values) for other, run in runs if self.evidence.of(other).learns_as == learner)

    @cached_property
    def in_reach(self) -> list[str]:
        """The timed candidates that have reached the target, or may within their budget."""
        names, limit = [c.arm for c in self.evidence.candidates], math.log(self.evidence.budget_samples)
        may = {arm: float(np.mean(self.log_N[:, names.index(arm)] < limit)) for arm in self.timed}
        return [arm for arm in self.timed if self.reached(arm) or may[arm] > OUT_OF_REACH]

    @cached_property
    def leader(self) -> str | None:
        """The arm with the least expected log T of those in reach, whether or not it was run."""
        return min(self.in_reach, key=self.mean_log_T.__getitem__, default=None)

    @cached_property
    def advised(self) -> str | None:
        """The arm with the least expected log T among those that were run often enough."""
        able = [arm for arm in self.timed if self.reached(arm) >= max(self.rule.runs_needed, 1)]
        return min(able, key=self.mean_log_T.__getitem__, default=None)

    def within(self, arm: str) -> float:
        """P(T of the arm <= (1 + tolerance) times the least)."""
        if arm not in self.in_reach:
            return 0.0
        best_D = self._log_T_in_reach.min(axis=1)
        return float(np.mean(self.log_T[:, self.timed.index(arm)] <= best_D + math.log1p(self.rule.tolerance)))

    @cached_property
    def _log_T_in_reach(self) -> np.ndarray:
        return self.log_T[:, [self.timed.index(arm) for arm in self.in_reach]]

    @cached_property
    def promising(self) -> list[str]:
        """The candidates that may be as good as the fastest: the others need no samples to be ruled out."""
        if not self.timed:
            return [candidate.arm for candidate in self.evidence.candidates]
        return [arm for arm in self.in_reach if self.within(arm) > NO_CHALLENGER]

    @property
    def separated(self) -> bool:
        """Whether the advice stands: there is something it was compared with, and it is fast enough."""
        return self.advised is not None and len(self.timed) > 1 and self.within(self.advised) >= self.rule.confidence

    @cached_property
    def probability_best(self) -> dict[str, float]:
        """P(an arm has the least T)."""
        found = dict.fromkeys(self.timed, 0.0)
        if self.in_reach:
            counts = np.bincount(self._log_T_in_reach.argmin(axis=1), minlength=len(self.in_reach))
            found |= dict(zip(self.in_reach, (counts / NUM_DRAWS).tolist(), strict=True))
        return found

    def beats(self, arm: str, other: str) -> float:
        """P(T(arm) < T(other) / (1 + tolerance)): that leaving the one for the other would cost more than allowed."""
        a, b = (self.log_T[:, self.timed.index(name)] for name in (arm, other))
        return float(np.mean(a < b - math.log1p(self.rule.tolerance)))

    @cached_property
    def challengers(self) -> list[str]:
        """Those that may beat the leader by more than the tolerance, the likeliest first."""
        lead = self.leader
        if lead is None:
            return []
        chance = {arm: self.beats(arm, lead) for arm in self.in_reach if arm != lead}
        return sorted((a for a in chance if chance[a] > NO_CHALLENGER), key=lambda a: -chance[a])

    @cached_property
    def runner_up(self) -> str | None:
        """The other arm with the least expected log T."""
        others = [arm for arm in self.in_reach if arm != (self.advised or self.leader)]
        return min(others, key=self.mean_log_T.__getitem__, default=None)

    def r_N(self, arm: str) -> Interval:
        """N* over the reference's."""
        names = [c.arm for c in self.evidence.candidates]
        own, reference = (self.log_N[:, names.index(name)] for name in (arm, self.evidence.reference))
        return _interval(own - reference)

    def r_q(self, arm: str) -> Interval:
        """q over the reference's."""
        return self._timed_ratio(self.log_q, arm)

    def r_T(self, arm: str, other: str | None = None) -> Interval:
        """T over the reference's, or another arm's."""
        return self._timed_ratio(self.log_T, arm, other)

    def breaks(self, arm: str) -> Interval:
        """The chance that a run of the arm breaks: mean and central 95%; nothing where rates are not known."""
        if not self.break_chance.any():
            return Interval()
        chance_D = self.break_chance[:, [c.arm for c in self.evidence.candidates].index(arm)]
        low, high = np.quantile(chance_D, [0.025, 0.975]).tolist()
        return Interval(float(chance_D.mean()), low, high)

    def _timed_ratio(self, draws: np.ndarray, arm: str, other: str | None = None) -> Interval:
        other = other or self.evidence.reference
        if arm not in self.timed or other not in self.timed:
            return Interval()
        return _interval(draws[:, self.timed.index(arm)] - draws[:, self.timed.index(other)])


def _interval(logs_D: np.ndarray) -> Interval:
    """The median and the central 95% of exp(draws)."""
    low, middle, high = np.exp(np.quantile(logs_D, [0.025, 0.5, 0.975])).tolist()
    return Interval(middle, low, high)


def allocate(decision: Decision, left: dict[str, int], workers: int) -> list[str]:
    """The arms to run next, one entry a run: of the leader and its likeliest challenger whichever is less known.

    left: how many seeds each arm has that were not run. Runs that are chosen count as made when the next is chosen.
    """
    lead = decision.leader
    if lead is None:
        return []
    pair = [lead, *[arm for arm in decision.challengers if left.get(arm, 0)][:1]]
    if decision.reached(lead) >= decision.rule.runs_needed and len(pair) == 1 and not left.get(lead, 0):
        return []
    left, chosen = dict(left), []
    post, seed_var = decision.posterior, decision.posterior.seed_sd**2
    variance = {arm: post.moments(post.contrast(decision.evidence.of(arm).learns_as))[1] ** 2 for arm in pair}
    for _ in range(workers):
        able = [arm for arm in pair if left.get(arm, 0) > 0]
        if not able:
            break
        arm = max(able, key=lambda name: variance[name])
        variance[arm] = 1 / (1 / variance[arm] + 1 / seed_var)
        left[arm] -= 1
        chosen.append(arm)
    return chosen
