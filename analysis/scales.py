"""What the gradients and the rates of a study say about its batches: slopes, noise scale, critical batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from analysis.critical import HyperbolaFit, Plateau, fit_hyperbola, plateau
from analysis.gradients import NoiseScale, log_log_slope, noise_scale, rms_by_trial, two_batch_noise
from analysis.penalty import Interval
from analysis.study import Study

NORMS = {"actor": "grad/actor_norm", "critic": "grad/critic_norm"}


@dataclass(frozen=True)
class Slope:
    """Log-log slope of a gradient norm over the batches [low, high] in responses; `flag` says why it is missing."""

    interval: Interval
    train_batch_range: tuple[int, int] | None
    flag: str | None = None


class Scales:
    """Slopes, noise scale and critical batches of a study."""

    def __init__(self, study: Study) -> None:
        self.study = study
        batches = study.sweep.arms["train_batch"]
        self.train_batch = {str(arm): int(batch) for arm, batch in batches.items()}

    @cached_property
    def family(self) -> list[str]:
        """The arms along the reference's learning-rate rule, by batch."""
        own = self.study.family(self.study.reference)
        arms = [arm for arm in self.study.arms if self.study.family(arm) == own]
        return sorted(arms, key=self.train_batch.__getitem__)

    @cached_property
    def aligned_range(self) -> list[str]:
        """The reference and the arms of its family that are aligned with it, by batch."""
        return [arm for arm in self.family if arm == self.study.reference or self.study.aligned[arm]]

    @cached_property
    def window_samples(self) -> float:
        """Gradients are compared over policies younger than this: until the reference's N*, within every arm's budget.

        A diverged trial does not shorten the window of the others: it counts with what it has.
        """
        updates, trials = self._updates, self.study.sweep.trials
        completed = updates[updates["trial_id"].isin(trials.index[trials["status"] == "completed"])]
        shared = float(completed.groupby("arm")["samples_trained"].max().min()) if len(completed) else 0.0
        target = self.study.samples_to_target(self.study.reference).estimate
        return min(shared, target) if target else shared

    @cached_property
    def norms(self) -> dict[str, pd.Series]:
        """Root mean square norm over the window by (arm, seed), for each network."""
        updates = self._updates
        return {network: rms_by_trial(updates, metric, self.window_samples) for network, metric in NORMS.items()}

    @property
    def _updates(self) -> pd.DataFrame:
        updates = self.study.sweep.updates
        return updates[updates["trial_id"].isin(self.study.curves)]

    def norm(self, arm: str, network: str) -> float | None:
        """Root mean square norm of an arm over its seeds."""
        found = self._seeds(arm, network)
        return math.sqrt(float((found**2).mean())) if len(found) else None

    def _seeds(self, arm: str, network: str) -> pd.Series:
        norms = self.norms[network]
        return norms.loc[arm] if len(norms) and arm in norms.index.get_level_values("arm") else pd.Series(dtype=float)

    def seed_means(self, arm: str, metric: str) -> pd.Series:
        """Mean of a metric of an arm over its updates within the window that recorded it, by seed."""
        updates = self._updates
        if metric not in updates:
            return pd.Series(dtype=float)
        own = updates[(updates["arm"] == arm) & (updates["samples_before"] < self.window_samples)]
        return pd.Series(own.dropna(subset=[metric]).groupby("seed")[metric].mean())

    def slope(self, network: str) -> Slope:
        """Slope over the aligned range, with Student's t over the seeds that all its arms have."""
        found = {arm: self._seeds(arm, network) for arm in self.aligned_range}
        norms = pd.DataFrame({arm: seeds[seeds > 0] for arm, seeds in found.items() if len(seeds)}).dropna()
        batches = np.array([self.train_batch[arm] for arm in norms.columns])
        if not len(norms):
            return Slope(Interval(), None, f"{NORMS[network]} is not recorded")
        if len(set(batches)) < 2:
            return Slope(Interval(), None, "fewer than two aligned batches")
        mean = log_log_slope(batches, norms.to_numpy())
        flag = "one seed: no interval" if mean.df == 0 else None
        return Slope(mean.interval(), (int(batches.min()), int(batches.max())), flag)

    def noise_scale(self) -> NoiseScale:
        """B_noise from the measurements at the reference's updates within the window."""
        updates = self._updates
        parts = ["grad/noise_trace", "grad/signal_sq"]
        if not set(parts) <= set(updates.columns):
            return noise_scale(np.empty(0), np.empty(0))
        own = updates[(updates["arm"] == self.study.reference) & (updates["samples_before"] < self.window_samples)]
        means = own.dropna(subset=parts).groupby("seed")[parts].mean()
        return noise_scale(means[parts[0]].to_numpy(), means[parts[1]].to_numpy())

    def noise_scale_from_norms(self) -> NoiseScale:
        """B_noise from the mean squared norms of the smallest and the largest aligned arm, seed by seed."""
        arms = [arm for arm in self.aligned_range if len(self._seeds(arm, "actor"))]
        if len(arms) < 2 or self.train_batch[arms[0]] == self.train_batch[arms[-1]]:
            return NoiseScale(Interval(), None, None, "fewer than two aligned batches with gradient norms")
        pair = pd.DataFrame({"small": self._seeds(arms[0], "actor"), "large": self._seeds(arms[-1], "actor")}).dropna()
        small, large = (self.train_batch[arm] for arm in (arms[0], arms[-1]))
        squares = pair.to_numpy() ** 2
        signal_sq, trace = two_batch_noise(small, squares[:, 0], large, squares[:, 1])
        return noise_scale(np.asarray(trace), np.asarray(signal_sq))

    def fit(self, power: float) -> HyperbolaFit | None:
        """N*(B) of the reference's family, arms without censored seeds."""
        samples = self.study.samples["interpolated"]
        arms = [arm for arm in self.family if samples[arm].complete]
        if not arms or not self.study.learning:
            return None
        batches = np.array([self.train_batch[arm] for arm in arms], dtype=float)
        means = np.array([samples[arm].values.mean() for arm in arms])
        sizes = np.array([samples[arm].size for arm in arms], dtype=float)
        return fit_hyperbola(batches, means, sizes, self.study.spread, power)

    def generation_plateau(self, column: str) -> tuple[Plateau | None, str | None]:
        """(plateau of a rate of the generate phase over what is in flight, the clock it was read from).

        column: generated_per_s (responses) or generated_tokens_per_s. Arms with the same number in flight are averaged;
        only repetitions that measured every arm count, and where there are none the means do. Arms that stream are left
        out: their phase is the trainer's wait.
        """
        clock = next(iter(self.study.clocks.values()), None)
        if clock is None:
            return None, None
        in_flight = self.study.sweep.arms["in_flight"]
        streaming = {t.arm for t in self.study.sweep.plan.trials if t.configured("execution", "mode") == "streaming"}
        rates = clock.rates[column]
        rates = rates[~rates.index.get_level_values("arm").isin(streaming)]
        logs = np.log(rates.where(lambda rate: rate > 0))
        wide = logs.unstack("repeat").groupby(in_flight).mean().sort_index()
        rounds = wide.dropna(axis="columns")
        if not rounds.shape[1]:
            rounds = wide.mean(axis="columns").dropna().to_frame()
        if rounds.empty:
            return None, clock.source
        return plateau(rounds.index.to_numpy(dtype=float), np.exp(rounds.to_numpy().T)), clock.source
