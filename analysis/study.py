"""From a sweep to its results: N*, r_N, q, r_T, alignment, verdict of every arm, and the recommendation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from analysis import decision
from analysis.band import Band, band
from analysis.curves import Curve, by_arm, copies_of, curves_of, grid_spacing, shows_learning, thin
from analysis.load import Sweep, records_of
from analysis.penalty import Interval, LogSample, Spread, log_mean, log_ratio, pooled_spread
from analysis.target import Crossing, round_up, samples_to_target
from analysis.throughput import Clock, choose, clocks

BAND_SEED = 0
ACTOR_NORM = "grad/actor_norm"
# The batch, and what a learning-rate rule makes of it.
BATCH_AXES = ["num_prompts", "group_size", "train_batch", "in_flight", "lr", "critic_lr"]


@dataclass(frozen=True)
class Trial:
    """N* of one finished trial. bound: the samples it is known not to have reached the target in, if right-censored."""

    trial_id: str
    arm: str
    seed: int
    train_batch: int
    curve: Curve
    crossing: Crossing
    bound: float


@dataclass(frozen=True)
class Measured:
    """What a sweep measured, whatever the target; trials without a curve and copies are no part of it.

    curves and boundaries (samples_trained after each update) by trial_id, groups: the curves of each arm in seed order.
    dead_arms: those whose recorded actor gradients are all exactly 0 (every group dead).
    """

    curves: dict[str, Curve]
    copies: dict[str, str]
    groups: dict[str, list[Curve]]
    clocks: Mapping[Literal["timing", "records"], Clock]
    boundaries: dict[str, np.ndarray]
    dead_arms: frozenset[str]


def measured(sweep: Sweep) -> Measured:
    """The curves and clocks of a sweep."""
    found = curves_of(sweep)
    copies = copies_of(sweep, found)
    curves = {trial_id: curve for trial_id, curve in found.items() if trial_id not in copies}
    boundaries = {trial_id: rows["samples_trained"].to_numpy() for trial_id, rows in records_of(sweep.updates)}
    return Measured(curves, copies, by_arm(sweep, curves), clocks(sweep), boundaries, _dead_arms(sweep))


def _dead_arms(sweep: Sweep) -> frozenset[str]:
    if ACTOR_NORM not in sweep.updates:
        return frozenset()
    largest = sweep.updates.groupby("arm")[ACTOR_NORM].max()
    return frozenset(largest.index[largest == 0])


class Study:
    """The results of one sweep at one target. Properties are computed when asked for, once.

    curves: of the trials that are data, by trial_id. copies: trials that are none because another seed of their arm has
    the same curve, with that trial. Raises InputError when the target metric is not recorded.
    """

    def __init__(self, sweep: Sweep, data: Measured | None = None) -> None:
        self.sweep = sweep
        self.reference = sweep.reference_arm
        self.arms = list(sweep.arms.index)
        self._data = data or measured(sweep)
        self.curves, self.copies = self._data.curves, self._data.copies
        self.groups, self.clocks = self._data.groups, self._data.clocks
        self.trials = self._trials()
        self._thinned = [self._thin(trial) for trial in self.trials]

    def at(self, target: float) -> Study:
        """The same measurements at another target."""
        return Study(replace(self.sweep, target=target), self._data)

    def _trials(self) -> list[Trial]:
        found = []
        rows = self.sweep.trials.to_dict(orient="index")
        batches = self.sweep.arms["train_batch"].to_dict()
        for trial_id, curve in self.curves.items():
            row = rows[trial_id]
            crossing = samples_to_target(curve.samples_K, curve.scores_K, self.sweep.target)
            # A diverged trial has no policy left that could reach the target within the budget.
            bound = float(curve.samples_K[-1])
            if row["status"] == "diverged" and row["budget_samples"] > bound:
                bound = float(row["budget_samples"])
            batch = int(batches[row["arm"]])
            found.append(Trial(trial_id, row["arm"], int(row["seed"]), batch, curve, crossing, bound))
        return sorted(found, key=lambda trial: trial.seed)

    def _thin(self, trial: Trial) -> Trial:
        """The trial with its curve thinned to the coarsest spacing."""
        seen = thin(trial.curve, self.coarsest_spacing)
        if len(seen.samples_K) == len(trial.curve.samples_K):
            return trial
        return replace(trial, crossing=samples_to_target(seen.samples_K, seen.scores_K, self.sweep.target))

    @cached_property
    def coarsest_spacing(self) -> float:
        """The widest evaluation spacing among the arms that reach the target, in samples."""
        reached = [trial.curve for trial in self.trials if trial.crossing.estimate is not None]
        return max((grid_spacing(curve) for curve in reached), default=0.0)

    @cached_property
    def samples(self) -> dict[str, dict[str, LogSample]]:
        """log N* of every arm in three variants: interpolated, rounded up to an update boundary, thinned."""

        def rounded(trial: Trial, estimate: float) -> float:
            return round_up(estimate, self._data.boundaries.get(trial.trial_id, np.empty(0)), trial.train_batch)

        return {
            "interpolated": self._log_samples(self.trials, lambda _, estimate: estimate),
            "rounded": self._log_samples(self.trials, rounded),
            "thinned": self._log_samples(self._thinned, lambda _, estimate: estimate),
        }

    def _log_samples(self, trials: Sequence[Trial], of: Callable[[Trial, float], float]) -> dict[str, LogSample]:
        """An arm of which a seed was at the target from the start has no N*, and so no sample."""
        found = {}
        for arm in self.arms:
            own = [trial for trial in trials if trial.arm == arm]
            values = [of(trial, trial.crossing.estimate) for trial in own if trial.crossing.estimate is not None]
            bounds = [max(trial.bound, 1.0) for trial in own if trial.crossing.censored == "right"]
            if any(trial.crossing.censored == "left" for trial in own):
                values, bounds = [], []
            found[arm] = LogSample(np.log(np.array(values)), np.log(np.array(bounds)))
        return found

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        """Spread of log N* over seeds, pooled over the arms, for each variant."""
        return {variant: pooled_spread(list(arms.values())) for variant, arms in self.samples.items()}

    @property
    def spread(self) -> Spread:
        """The spread of the interpolated N*."""
        return self.spreads["interpolated"]

    def samples_to_target(self, arm: str) -> Interval:
        """N* of an arm: geometric mean over seeds with its 95% interval, samples."""
        return log_mean(self.samples["interpolated"][arm], self.spread).map(math.exp)

    def r_N(self, arm: str, level: float = 0.95) -> Interval:
        """N*(arm) / N*(reference)."""
        if arm == self.reference:
            return Interval(1.0, 1.0, 1.0) if self.reference_complete else Interval()
        samples = self.samples["interpolated"]
        return log_ratio(samples[arm], samples[self.reference], self.spread, level).map(math.exp)

    @property
    def reference_complete(self) -> bool:
        """Whether every seed of the reference reached the target."""
        return self.samples["interpolated"][self.reference].complete

    def clock(self, arm: str) -> Clock | None:
        """The clock that r_q of this arm comes from."""
        return choose(self.clocks, arm, self.reference)

    def r_q(self, arm: str) -> Interval:
        """q(arm) / q(reference)."""
        clock = self.clock(arm)
        mean = clock.log_ratio(arm, self.reference) if clock else None
        return mean.interval().map(math.exp) if mean else Interval()

    def r_T(self, arm: str, variant: str = "interpolated", other: str | None = None) -> Interval:
        """T(arm) / T(other), the other being the reference unless said otherwise."""
        other = other or self.reference
        if arm == other:
            return Interval(1.0, 1.0, 1.0) if self.samples[variant][arm].complete else Interval()
        clock = choose(self.clocks, arm, other)
        divisor = clock.log_ratio(arm, other) if clock else None
        if divisor is None:
            return Interval()
        samples = self.samples[variant]
        return log_ratio(samples[arm], samples[other], self.spreads[variant], divisor=divisor).map(math.exp)

    def time_to_target_s(self, arm: str) -> float | None:
        """T: N* rounded up to an update boundary, over q; seconds."""
        clock, sample = self.clock(arm), self.samples["rounded"][arm]
        rate = clock.means(arm)["samples_per_s"] if clock else None
        return math.exp(sample.values.mean()) / rate if rate and sample.complete else None

    @cached_property
    def learning(self) -> bool:
        """Whether the sweep holds a learning signal at all."""
        return shows_learning(list(self.groups.values())) and not all(map(self.zero_gradients, self.arms))

    def zero_gradients(self, arm: str) -> bool:
        """Whether every recorded actor gradient of the arm is exactly 0 (all groups dead)."""
        return arm in self._data.dead_arms

    @cached_property
    def aligned(self) -> dict[str, bool | None]:
        """`aligned` of every arm, tested outward from the reference; arms without trials are no part of the order."""
        found: dict[str, bool | None] = dict.fromkeys(self.arms)
        if not self.learning or not self.reference_complete:
            return found
        tested = {
            arm: decision.OutwardArm(
                self.family(arm),
                int(self.sweep.arms.loc[arm, "train_batch"]),
                None if self.zero_gradients(arm) else decision.equivalent(self.r_N(arm, 0.90)),
            )
            for arm in self.arms
            if self.groups[arm] or arm == self.reference
        }
        return found | decision.aligned_outward(tested, self.reference)

    def family(self, arm: str) -> tuple[str, ...]:
        """What an arm shares with those it is compared along: everything varied but the batch and the rate applied."""
        return tuple(map(str, self.sweep.arms.loc[arm].drop(BATCH_AXES, errors="ignore")))

    def verdict(self, arm: str) -> tuple[decision.Verdict, str]:
        """The verdict and its reason."""
        trials = [trial for trial in self.trials if trial.arm == arm]
        if arm == self.reference:
            return "reference", ""
        if not trials:
            return "inconclusive", "no finished trial"
        if not self.learning or self.zero_gradients(arm):
            return "inconclusive", "no learning signal"
        if any(trial.crossing.censored == "left" for trial in trials):
            return "inconclusive", "the target is reached before training"
        if all(trial.crossing.censored for trial in trials):
            return "target_not_reached", f"no seed reaches the target in {max(t.bound for t in trials):,.0f} samples"
        return self._compare(arm)

    def _compare(self, arm: str) -> tuple[decision.Verdict, str]:
        variants = {variant: self.r_T(arm, variant) for variant in self.samples}
        found = decision.verdict(list(variants.values()))
        if found != "inconclusive":
            return found, ""
        main = variants["interpolated"]
        if main.low is None and main.high is None:
            missing = "throughput" if self.r_q(arm).estimate is None else "an interval of r_T"
            return found, f"{missing} is not known" if self.reference_complete else "the reference misses the target"
        alone = decision.verdict([main])
        if alone != "inconclusive":
            undone = [name for name, r_T in variants.items() if decision.verdict([r_T]) != alone]
            return found, f"{alone} with N* interpolated, but not {' and '.join(undone)}"
        return found, "the interval of r_T holds 1"

    @cached_property
    def recommendation(self) -> decision.Recommendation:
        """Which arm to use."""
        if not self.learning:
            return decision.Recommendation(None, None, (), "no learning signal: nothing can be said about batches")
        if not self.reference_complete:
            highest = max((float(curve.scores_K.max()) for curve in self.groups[self.reference]), default=math.nan)
            text = "not every seed of the reference reaches the target, so r_N is undefined"
            text += f"; its highest score is {highest:.3g}" if math.isfinite(highest) else ""
            return decision.Recommendation(None, None, (), text)
        candidates = [decision.Candidate(arm, self.verdict(arm)[0], self.r_T(arm)) for arm in self.arms]
        faster = [c.arm for c in candidates if c.verdict == "faster"]
        against = {best: {arm: self.r_T(arm, other=best) for arm in faster if arm != best} for best in faster}
        return decision.recommend(candidates, self.reference, against)

    @cached_property
    def bands(self) -> dict[str, Band]:
        """The band of each arm's distance from the reference over the whole curve, where both have curves."""
        found: dict[str, Band] = {}
        for arm in self.arms:
            if arm != self.reference and self.groups[arm] and self.groups[self.reference]:
                own = band(self.groups[arm], self.groups[self.reference], np.random.default_rng(BAND_SEED))
                found |= {} if own is None else {arm: own}
        return found
