"""Is P*G the unit? The noise between and within prompts, and arms that share P*G but differ in the group size.

E |g|^2 = |G|^2 + between/P + within/(P G), so the noise of one response is tr(S) = G between + within: what a batch is
worth depends on P*G alone while G between << within, and on P alone beyond. The two are equal at G = within / between.
Every part is a mean over updates, then over seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from analysis.decision import equivalent
from analysis.gradients import NoiseScale, noise_scale
from analysis.penalty import Interval, mean_of
from analysis.scales import Scales

SIGNAL, TRACE = "grad/signal_sq", "grad/noise_trace"
BETWEEN = "grad/noise_between_trace"
DEAD = "reward/zero_variance_frac"


@dataclass(frozen=True)
class Matched:
    """An arm with the reference's P*G. r_N predicted by the split; tr(S) measured, and as the split has it."""

    arm: str
    group_size: int
    r_N: Interval
    equivalent: bool | None
    optimal_step: Interval
    adam: Interval
    dead_frac: Interval
    noise_trace: Interval
    split_trace: Interval


Unit = Literal["P*G", "not P*G", "unclear"]


class Groups:
    """The split of the noise at the reference, and its matched pairs by group size."""

    def __init__(self, scales: Scales) -> None:
        self.scales = scales
        self.study = scales.study
        self.group_size = {str(arm): int(size) for arm, size in self.study.sweep.arms["group_size"].items()}

    def mean(self, metric: str, arm: str) -> Interval:
        """Mean of a metric of an arm over the window, over seeds."""
        seeds = self.scales.seed_means(arm, metric)
        return mean_of(seeds.to_numpy()).interval() if len(seeds) else Interval()

    @cached_property
    def _split(self) -> pd.DataFrame:
        """Signal, between and within of the reference by seed; empty where the split was not measured.

        The split is measured at few of the updates, signal and tr(S) at many: within is tr(S) - G between.
        """
        parts = [self.scales.seed_means(self.study.reference, name) for name in (SIGNAL, TRACE, BETWEEN)]
        split = pd.concat(parts, axis=1, keys=["signal", "trace", "between"]).dropna()
        return split.assign(within=split["trace"] - self.group_size[self.study.reference] * split["between"])

    def trace(self, part: str) -> Interval:
        """tr of the noise `between` or `within` prompts at the reference."""
        return mean_of(self._split[part].to_numpy()).interval() if len(self._split) else Interval()

    def equal_size(self) -> NoiseScale:
        """The group size at which between and within prompts add the same noise, within / between."""
        split = self._split
        found = noise_scale(split["within"].to_numpy(), split["between"].to_numpy())
        flag = found.flag and found.flag.replace("|G|^2", "noise between prompts").replace("tr(S)", "noise within")
        return NoiseScale(found.interval, found.signal_sq, found.trace, flag)

    @cached_property
    def matched(self) -> list[Matched]:
        """The arms of the reference's family that share its P*G, by group size; empty with one size alone."""
        study, size = self.study, self.group_size
        own = study.family(study.reference)
        batch = self.scales.train_batch
        arms = [a for a in study.arms if batch[a] == batch[study.reference] and study.family(a) == own]
        if len({size[arm] for arm in arms}) < 2:
            return []
        return [self._matched(arm) for arm in sorted(arms, key=size.__getitem__)]

    def _matched(self, arm: str) -> Matched:
        study, G = self.study, self.group_size[arm]
        optimal = self._predicted(G)
        split = self._split
        trace = (G * split["between"] + self._within(G) * split["within"]).to_numpy()
        return Matched(
            arm,
            G,
            study.r_N(arm),
            None if arm == study.reference else equivalent(study.r_N(arm, 0.90)),
            optimal,
            optimal.map(math.sqrt),
            self.mean(DEAD, arm),
            self.mean(TRACE, arm),
            mean_of(trace).interval() if len(trace) else Interval(),
        )

    def _within(self, group_size: int) -> float:
        """The noise within prompts at another group size over that at the reference's.

        The leave-one-out baseline is a mean of G - 1 rewards: its variance adds to that of the response's own, so the
        noise within goes as 1 + 1/(G - 1) where rewards and scores are independent. 1 for every other algorithm.
        """
        reference = self.study.reference
        if self.study.sweep.arms.loc[reference, "algorithm"] != "rloo":
            return 1.0
        return loo_factor(group_size) / loo_factor(self.group_size[reference])

    def _predicted(self, group_size: int) -> Interval:
        """(|G|^2 + tr(S)(G)/B) / (|G|^2 + tr(S)(G_ref)/B), a ratio of means over seeds (Fieller)."""
        reference, split = self.study.reference, self._split
        if group_size == self.group_size[reference]:
            return Interval(1.0, 1.0, 1.0) if len(split) else Interval()

        def norm_sq(size: int) -> np.ndarray:
            trace = size * split["between"] + self._within(size) * split["within"]
            noise = trace / self.scales.train_batch[reference]
            return (split["signal"] + noise).to_numpy()

        return noise_scale(norm_sq(group_size), norm_sq(self.group_size[reference])).interval

    @property
    def unit(self) -> Unit | None:
        """P*G when every matched arm is equivalent to the reference; not P*G when one is shown not to be; else unclear.

        Shown not to be: its 95% interval of r_N excludes 1 and its 90% interval leaves the margin of equivalence.
        """
        others = [found for found in self.matched if found.arm != self.study.reference]
        if not others:
            return None
        if all(found.equivalent for found in others):
            return "P*G"
        return "not P*G" if any(_differs(found) for found in others) else "unclear"


def loo_factor(group_size: int) -> float:
    """Variance of a reward less the mean of the G - 1 others, over that of a reward.

    >>> loo_factor(2), loo_factor(5)
    (2.0, 1.25)
    """
    return 1 + 1 / (group_size - 1)


def _differs(found: Matched) -> bool:
    low, high = found.r_N.low, found.r_N.high
    return found.equivalent is False and ((low is not None and low > 1) or (high is not None and high < 1))
