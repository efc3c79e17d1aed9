"""What engine and trainer did of the time of an arm's trials, and how full the engine was while it generated."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis.load import PHASES
from analysis.records import ROLE_COLUMNS, ROLES
from analysis.scales import Scales


def roles(scales: Scales) -> list[dict[str, Any]]:
    """A row for each arm whose records say it: means over the time of its updates, all trials together.

    overlap_frac: share of the time in which both were busy, as at least one of them always is:
    engine_busy_frac + trainer_busy_frac - 1. in_flight_mean and tail_frac are means over the engine's busy time.
    """
    study = scales.study
    updates = study.sweep.updates[study.sweep.updates["trial_id"].isin(study.curves)]
    if not set(ROLE_COLUMNS) <= set(updates.columns):
        return []  # no update was recorded at all
    updates = updates.dropna(subset=["engine_busy_frac", "trainer_busy_frac"])
    modes = {trial.arm: trial.configured("execution", "mode") for trial in study.sweep.plan.trials}
    found = []
    for arm in study.arms:
        own = updates[updates["arm"] == arm]
        seconds = own[[f"{phase}_s" for phase in PHASES]].sum(axis=1).to_numpy()
        if not seconds.sum() > 0:
            continue
        engine, trainer = (own[f"{role}_busy_frac"].to_numpy() @ seconds / seconds.sum() for role in ROLES)
        busy_s = own["engine_busy_frac"].to_numpy() * seconds
        row = {"arm": arm, "train_batch": scales.train_batch[arm], "mode": modes[arm]}
        row |= {"engine_busy_frac": float(engine), "trainer_busy_frac": float(trainer)}
        row |= {"overlap_frac": max(0.0, float(engine + trainer) - 1)}
        found.append(row | {name: _mean(own[name].to_numpy(), busy_s) for name in ("in_flight_mean", "tail_frac")})
    return found


def _mean(values: np.ndarray, weights: np.ndarray) -> float | None:
    known = np.isfinite(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None
