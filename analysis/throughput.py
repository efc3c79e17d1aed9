"""q: samples per second, from the timing pass and from the trials' own records, and r_q with its interval.

q = samples / (generate + reward + train + sync seconds, and those that an imported log does not divide), counts over
counts: evaluation, checkpoints and start-up are no part of it. In the timing pass arms take turns on an otherwise idle
machine, so that r_q is the mean over rounds of log(q_arm / q_reference) within a round. Records come from trials that
shared the machine; there the spread over trials is pooled over arms, and r_q is only as good as the sharing was even.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from analysis.load import PHASES, Sweep
from analysis.penalty import EXACT, LogSample, Mean, Spread, mean_of, pooled_spread

SECONDS = [f"{phase}_s" for phase in PHASES]


@dataclass(frozen=True)
class Clock:
    """Rates by arm and repetition.

    rates: one row per (arm, repeat), index names `arm` and `repeat` (the round of a timing pass, or the trial), columns
    samples_per_s, tokens_per_s, generate_s_per_sample, train_s_per_sample, generated_per_s, generated_tokens_per_s (the
    rates of the generate phase alone).
    """

    source: Literal["timing", "records"]
    rates: pd.DataFrame

    def of(self, arm: str) -> pd.DataFrame:
        """The repetitions of one arm, index `repeat`; empty where it was not measured."""
        return self.rates[self.rates.index.get_level_values("arm") == arm].droplevel("arm")

    def means(self, arm: str) -> dict[str, float | None]:
        """Geometric means over repetitions, so that the ratio of two arms is the mean ratio."""
        rows = self.of(arm)
        return {name: _geometric_mean(rows[name].to_numpy()) for name in self.rates.columns}

    @cached_property
    def logs(self) -> dict[str, pd.Series]:
        """log q by arm, index `repeat`."""
        by_arm = self.rates["samples_per_s"].groupby(level="arm", sort=False)
        return {str(arm): np.log(rates.droplevel("arm")) for arm, rates in by_arm}

    def log_ratio(self, arm: str, other: str) -> Mean | None:
        """log(q_arm / q_other) and its variance; None where they were not measured together."""
        if arm not in self.logs or other not in self.logs:
            return None
        a, b = self.logs[arm], self.logs[other]
        if self.source == "timing":
            differences = (a - b).dropna().to_numpy()
            return EXACT if arm == other else mean_of(differences) if len(differences) else None
        variance = self._pooled.sd**2 * (1 / len(a) + 1 / len(b))
        return EXACT if arm == other else Mean(float(a.mean() - b.mean()), variance, self._pooled.df)

    @cached_property
    def _pooled(self) -> Spread:
        return pooled_spread([LogSample(log.to_numpy()) for log in self.logs.values()])

    def spread(self, arms: Sequence[str]) -> Spread:
        """Spread of log q between repetitions of an arm, pooled over arms.

        In the timing pass what a round has in common is taken out first: s^2 = sum (x_ar - x_a - x_r + x)^2 /
        ((A - 1) (R - 1)) over the rounds that measured every arm.
        """
        if self.source == "records":
            return pooled_spread([LogSample(self.logs[arm].to_numpy()) for arm in arms])
        table = pd.DataFrame({arm: self.logs[arm] for arm in arms}).dropna().to_numpy()
        df = (table.shape[0] - 1) * (table.shape[1] - 1)
        if df <= 0:
            return Spread(0.0, 0)
        rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
        return Spread(math.sqrt(float((rest**2).sum()) / df), df)


def rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Sums over sums by (arm, repeat) of rows with the columns samples, tokens and the phases' seconds.

    What no row of a repetition has is NaN.

    125, 112 and 121 samples in 10 + 10 + 9 s, all of it in two phases:

    >>> rows = pd.DataFrame({"arm": "a", "repeat": 0, "samples": [125, 112, 121], "tokens": 0, "generate_s": [6, 6, 5],
    ...                      "train_s": 4, "reward_s": 0, "sync_s": 0})
    >>> rates(rows)["samples_per_s"].item() == 358 / 29
    True
    """
    summed = ["samples", "tokens", *SECONDS]
    columns = rows.reindex(columns=["arm", "repeat", *summed]).astype(dict.fromkeys(summed, float))
    total = columns.groupby(["arm", "repeat"], sort=False)[summed].sum(min_count=1)
    samples, seconds = total["samples"], total[SECONDS].sum(axis=1)
    table = pd.DataFrame(
        {
            "samples_per_s": samples / seconds,
            "tokens_per_s": total["tokens"] / seconds,
            "generate_s_per_sample": total["generate_s"] / samples,
            "train_s_per_sample": total["train_s"] / samples,
            "generated_per_s": samples / total["generate_s"],
            "generated_tokens_per_s": total["tokens"] / total["generate_s"],
        }
    )
    table = table.where(np.isfinite(table))
    return table[table["samples_per_s"] > 0]


def clocks(sweep: Sweep) -> dict[Literal["timing", "records"], Clock]:
    """The clocks that a sweep has, the better one first."""
    found: dict[Literal["timing", "records"], Clock] = {}
    timing = rates(sweep.timing.rename(columns={"round": "repeat"}))
    if len(timing):
        found["timing"] = Clock("timing", timing)
    # After a gap in the records the samples of an update are unknown: its seconds are left out with them, and samples
    # whose seconds are unknown likewise.
    kept = sweep.updates[sweep.updates["trial_id"].isin(sweep.finished.index)].dropna(subset=["samples"])
    kept = kept.dropna(subset=SECONDS, how="all")
    records = rates(kept.rename(columns={"trial_id": "repeat", "tokens_generated": "tokens"}))
    if len(records):
        found["records"] = Clock("records", records)
    return found


def choose(found: Mapping[Literal["timing", "records"], Clock], arm: str, reference: str) -> Clock | None:
    """The first clock that measured both arms."""
    return next((clock for clock in found.values() if clock.log_ratio(arm, reference) is not None), None)


def _geometric_mean(values: np.ndarray) -> float | None:
    usable = values[np.isfinite(values) & (values > 0)]
    return math.exp(float(np.log(usable).mean())) if len(usable) else None
