"""What the age of the samples costs: of each arm how old its tokens were, and r_N over that age within one batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.penalty import Interval, Mean, Spread
from analysis.plain import interval_json
from analysis.scales import Scales
from analysis.study import Study

AGES = [f"{unit}_{what}" for unit in ("staleness_updates", "staleness_samples") for what in ("mean", "max")]


def staleness_report(scales: Scales) -> dict[str, Any]:
    """The key `staleness` of report.json: {"arms": rows, "price": a row per batch}; both empty without mode streaming.

    Ages of an arm: mean over its tokens that were trained on, and largest, in all its trials; 0 where arms take turns.
    samples_dropped_frac: dropped over dropped and trained.
    """
    study = scales.study
    plans = {trial.arm: trial for trial in study.sweep.plan.trials}
    modes = {arm: plans[arm].configured("execution", "mode") for arm in study.arms}
    if "streaming" not in modes.values():
        return {"arms": [], "price": []}
    in_flight = study.sweep.arms["in_flight"].to_dict()
    rows = []
    for arm in sorted(filter(study.groups.get, study.arms), key=scales.train_batch.__getitem__):
        batch = scales.train_batch[arm]
        row = {"arm": arm, "train_batch": batch, "mode": modes[arm], "in_flight_ratio": in_flight[arm] / batch}
        row |= {"correction": plans[arm].configured("algorithm", "correction") or "none"}
        r_q = study.r_q(arm)
        ratios = {"r_N": study.r_N(arm), "r_q": r_q, "r_T": study.r_T(arm)}
        row |= _ages(study, arm, turns=modes[arm] != "streaming")
        rows.append(row | {name: interval_json(ratio, "not known") for name, ratio in ratios.items()})
    return {"arms": rows, "price": prices(study, rows)}


def _ages(study: Study, arm: str, turns: bool) -> dict[str, float | None]:
    updates = study.sweep.updates
    own = updates[(updates["arm"] == arm) & updates["trial_id"].isin(study.curves)]
    dropped, trained = own["samples_dropped"].sum(), own["samples"].sum()
    found: dict[str, float | None] = {"samples_dropped_frac": float(dropped / (dropped + trained)) if trained else None}
    for name in AGES:
        column = f"policy/{name}"
        values = own[column].to_numpy() if column in own else np.empty(0)
        known = np.isfinite(values)
        if turns:
            found[name] = 0.0
        elif not known.any():
            found[name] = None
        elif name.endswith("max"):
            found[name] = float(values[known].max())
        else:
            tokens = own["tokens_trained"].to_numpy()
            weighed = known & (tokens > 0)
            found[name] = float(np.average(values[weighed], weights=tokens[weighed])) if weighed.any() else None
    return found


def prices(study: Study, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each batch with arms of different ages: by what factor one update of age multiplies the samples to the target.

    Arms without a correction whose seeds all reach the target, among them the one that takes turns, of age 0.
    """
    found = []
    for batch in dict.fromkeys(row["train_batch"] for row in rows):
        own = [row for row in rows if row["train_batch"] == batch and row["correction"] == "none"]
        samples = study.samples["interpolated"]
        own = [row for row in own if row["staleness_updates_mean"] is not None and samples[row["arm"]].complete]
        ages_A = np.array([row["staleness_updates_mean"] for row in own])
        means_A = np.array([samples[row["arm"]].values.mean() for row in own])
        sizes_A = np.array([samples[row["arm"]].size for row in own])
        slope = age_slope(ages_A, means_A, sizes_A, study.spread)
        if slope is None:
            continue
        factor = slope.interval().map(math.exp)
        row = {"train_batch": batch, "num_arms": len(own), "ages": [float(ages_A.min()), float(ages_A.max())]}
        found.append(row | {"factor": interval_json(factor, "one seed an arm: no interval"), "price": priced(factor)})
    return found


def age_slope(ages_A: np.ndarray, log_samples_A: np.ndarray, sizes_A: np.ndarray, spread: Spread) -> Mean | None:
    """Slope of log N* on the mean age, least squares weighted by the seeds of each arm; None where all are of one age.

    Its variance is s^2 / sum_a n_a (x_a - mean)^2 with the spread s over seeds that is pooled over all arms: it is that
    of the seeds alone, and does not grow where arms leave the line.

    Ages 0, 1, 2 and log N* 9, 9.1, 9.2 from 3 seeds each: sum 3 (1 + 0 + 1) = 6.

    >>> found = age_slope(np.array([0.0, 1, 2]), np.array([9, 9.1, 9.2]), np.array([3, 3, 3]), Spread(0.06, 6))
    >>> round(found.value, 6), round(found.variance, 6), found.df
    (0.1, 0.0006, 6)
    """
    if len(ages_A) < 2 or np.ptp(ages_A) == 0:
        return None
    centred_A = ages_A - np.average(ages_A, weights=sizes_A)
    weight = float(sizes_A @ centred_A**2)
    return Mean(float((sizes_A * centred_A) @ log_samples_A) / weight, spread.sd**2 / weight, spread.df)


def priced(factor: Interval) -> bool | None:
    """Whether age is shown to cost samples; None without an interval."""
    return None if factor.low is None else factor.low > 1
