"""How far the policy moves per rollout batch and per sample, where the records hold it."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.penalty import Interval, mean_of
from analysis.scales import Scales

UPDATE_NORM, KL = "policy/update_norm", "policy/kl_from_behaviour"


@dataclass(frozen=True)
class Cadence:
    """Of one arm, per rollout batch: optimizer steps, norm of the weights' change, KL from the sampling policy."""

    arm: str
    optimizer_steps: float
    train_batch: int
    update_norm: Interval
    kl: Interval

    def per_sample(self, move: Interval) -> float | None:
        """A move per rollout batch over the batch's responses."""
        return None if move.estimate is None else move.estimate / self.train_batch


def cadences(scales: Scales) -> list[Cadence]:
    """Every arm that recorded its move, means over the window and over seeds, by optimizer steps; empty: none did."""
    study = scales.study
    updates = study.sweep.updates
    found = []
    for arm in study.arms:
        seeds = [scales.seed_means(arm, metric) for metric in (UPDATE_NORM, KL)]
        if len(seeds[0]):
            last = updates[updates["arm"] == arm].groupby("trial_id").last()
            steps = float((last["optimizer_steps"] / last["step"]).mean())
            moves = [mean_of(values.to_numpy()).interval() if len(values) else Interval() for values in seeds]
            found.append(Cadence(arm, steps, scales.train_batch[arm], *moves))
    return sorted(found, key=lambda cadence: (cadence.optimizer_steps, cadence.train_batch))
