"""The tables behind the figures, one CSV each: everything that is drawn is a row here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.critical_words import critical_rows
from analysis.curves import common_grid
from analysis.findings import FORMS
from analysis.prediction import predicted_curve
from analysis.regime import TimeModel
from analysis.scales import Scales
from analysis.series import with_series
from analysis.staleness import AGES
from analysis.study import Study

MATCHED = ("arm", "group_size", "equivalent", "r_N", "optimal_step", "adam", "dead_frac", "noise_trace", "split_trace")
MOVES = ("update_norm", "kl", "update_norm_per_sample", "kl_per_sample")
SHARES = ("engine_busy_frac", "trainer_busy_frac", "overlap_frac", "in_flight_mean", "tail_frac")
ROLES = ["arm", "train_batch", "mode", *SHARES]
STALENESS = (
    "arm", "train_batch", "mode", "in_flight_ratio", "correction", *AGES, "samples_dropped_frac", "r_N", "r_q", "r_T",
)  # fmt: skip
CADENCE = ("arm", "optimizer_steps_per_batch", "train_batch", *MOVES)


def build_tables(report: Mapping[str, Any], study: Study, scales: Scales) -> dict[str, pd.DataFrame]:
    """Tables by name, see analysis.Results."""
    tables = {
        "arms": _arms(report),
        "seeds": _seeds(report),
        "curves": _curves(study),
        "distances": _distances(study),
        "targets": _targets(report),
        "critical": pd.DataFrame(critical_rows(report)).drop(columns=["value"]),
        "fit": _fit(study, scales),
        "prediction": _prediction(report),
        "gradients": _gradients(report),
        "groups": _flat(report["groups"]["matched"], MATCHED),
        "cadence": _flat(report["cadence"], CADENCE),
        "reach": _flat(report["reach"], ("way", "batch", "start", "start_r_N", "largest")),
        "throughput": _throughput(report),
        "growth": _growth(report),
        "roles": pd.DataFrame(report["roles"], columns=ROLES),
        "staleness": _flat(report["staleness"]["arms"], STALENESS),
        "excluded": pd.DataFrame(report["excluded"], columns=["trial_id", "status", "reason"]),
    }
    # A column without a single value would be one of objects, which no figure can draw.
    return {name: table.astype({c: float for c in table if table[c].isna().all()}) for name, table in tables.items()}


def _limits(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    low, high = value["interval"] if "interval" in value else value["ci95"]
    return {name: value["estimate"], f"{name}_low": low, f"{name}_high": high}


def _arms(report: Mapping[str, Any]) -> pd.DataFrame:
    """One row per arm: what it is, N*, update ratio, r_N, q, r_q, r_T with limits, verdict, alignment, distance."""
    axes = (
        "arm",
        "algorithm",
        "num_prompts",
        "group_size",
        "train_batch",
        "lr_rule",
        "lr",
        "num_seeds",
        "num_censored",
    )
    rows = []
    for arm in report["arms"]:
        row = {name: arm[name] for name in axes} | arm["axes"]
        row["is_control"] = arm["lr_rule"] != _reference(report)["lr_rule"]
        for name in ("samples_to_target", "update_ratio", "r_N", "r_T"):
            row |= _limits(name, arm[name])
        row |= {"samples_per_s": arm["throughput"]["samples_per_s"], "r_q": arm["r_q"]}
        row |= dict(zip(("r_q_low", "r_q_high"), arm["r_q_ci95"], strict=True))
        row |= {name: arm[name] for name in ("time_to_target_s", "verdict", "verdict_reason", "aligned")}
        distance = arm["curve_distance"] or {"band95": [None, None]}
        row |= {"largest_distance": distance.get("largest"), "at_samples": distance.get("at_samples")}
        rows.append(row | dict(zip(("largest_distance_low", "largest_distance_high"), distance["band95"], strict=True)))
    return with_series(pd.DataFrame(rows), report)


def _seeds(report: Mapping[str, Any]) -> pd.DataFrame:
    """N* of every trial: the evaluations around it, the estimate, whether it is a bound."""
    rows = [{"arm": arm["arm"], **seed} for arm in report["arms"] for seed in arm["samples_to_target"]["per_seed"]]
    return pd.DataFrame(rows, columns=["arm", "seed", "trial_id", "below", "above", "estimate", "censored", "bound"])


def _curves(study: Study) -> pd.DataFrame:
    """Score of each arm at its own evaluations: mean, lowest and highest over seeds."""
    rows = []
    for arm, curves in study.groups.items():
        if curves:
            grid_M = common_grid([curves])
            scores_SM = np.stack([curve.at(grid_M) for curve in curves])
            columns = {"mean": scores_SM.mean(0), "low": scores_SM.min(0), "high": scores_SM.max(0)}
            rows.append(pd.DataFrame({"arm": arm, "num_seeds": len(curves), "samples_trained": grid_M, **columns}))
    return pd.concat(rows, ignore_index=True)


def _distances(study: Study) -> pd.DataFrame:
    """J(arm) - J(reference) on their common grid, with limits that hold over the whole curve of an arm together."""
    rows = [pd.DataFrame(columns=["arm", "samples_trained", "difference", "low", "high"])]
    for arm, band in study.bands.items():
        half_M = np.full(len(band.samples_M), np.nan) if band.half_M is None else band.half_M
        limits = {"low": band.difference_M - half_M, "high": band.difference_M + half_M}
        columns = {"samples_trained": band.samples_M, "difference": band.difference_M, **limits}
        rows.append(pd.DataFrame({"arm": arm, **columns}))
    return pd.concat(rows[1:] or rows, ignore_index=True)


def _targets(report: Mapping[str, Any]) -> pd.DataFrame:
    """r_N, r_T, verdict and alignment of every arm at every target; `recommended` marks the arm to use there."""
    rows = []
    for level in report["targets"]["levels"]:
        for arm in level["arms"]:
            row = {
                "target": level["target"],
                "arm": arm["arm"],
                **_limits("r_N", arm["r_N"]),
                **_limits("r_T", arm["r_T"]),
            }
            row |= {"verdict": arm["verdict"], "aligned": arm["aligned"]}
            rows.append(row | {"recommended": arm["arm"] == level["recommendation"]["arm"]})
    ratios = [f"{name}{limit}" for name in ("r_N", "r_T") for limit in ("", "_low", "_high")]
    return pd.DataFrame(rows, columns=["target", "arm", *ratios, "verdict", "aligned", "recommended"])


def _fit(study: Study, scales: Scales) -> pd.DataFrame:
    """Along the reference's family: the fit of r_N, Adam's form from the reference's noise, the closed form of r_T."""
    fit, model = scales.fit(1.0), TimeModel(scales)
    batches = [scales.train_batch[arm] for arm in scales.family]
    grid_M = np.geomspace(min(batches), max(batches), 60)
    found = {"train_batch": grid_M}
    if fit is not None and fit.interval.estimate is not None:
        found["r_N"] = np.asarray(fit.predict(grid_M)) / fit.predict(scales.train_batch[study.reference])
    if model.r_T(grid_M[0]) is not None:
        found["closed_form"] = np.array([model.r_T(batch) for batch in grid_M])
    predicted_M = predicted_curve(scales, grid_M)
    if len(predicted_M):
        found["predicted"] = predicted_M
    return pd.DataFrame(found if len(found) > 1 else None, columns=["train_batch", "r_N", "predicted", "closed_form"])


def _prediction(report: Mapping[str, Any]) -> pd.DataFrame:
    """r_N of each arm, measured and predicted from the reference run alone, with errors on the log scale."""
    rows = []
    for arm in report["prediction"]["arms"]:
        row = {"arm": arm["arm"]} | _limits("r_N", arm["r_N"])
        for form in FORMS:
            row |= _limits(form, arm[form]) | {f"{form}_log_error": arm[form]["log_error"]}
        rows.append(row)
    names = [f"{form}{end}" for form in FORMS for end in ("", "_low", "_high", "_log_error")]
    return pd.DataFrame(rows, columns=["arm", "r_N", "r_N_low", "r_N_high", *names])


def _flat(rows: list[dict[str, Any]], names: Sequence[str]) -> pd.DataFrame:
    """Rows with their intervals as three columns each."""
    flat = []
    for row in rows:
        found: dict[str, Any] = {}
        for name in names:
            found |= _limits(name, row[name]) if isinstance(row[name], Mapping) else {name: row[name]}
        flat.append(found)
    return pd.DataFrame(flat, columns=None if flat else list(names))


def _gradients(report: Mapping[str, Any]) -> pd.DataFrame:
    """Gradient norms by arm beside what B^(-1/2) through the reference would give."""
    reference = _reference(report)
    rows = []
    for arm in report["arms"]:
        falling = math.sqrt(reference["train_batch"] / arm["train_batch"])
        row = {"arm": arm["arm"], "train_batch": arm["train_batch"], "lr": arm["lr"]}
        for network, norm in arm["grad_norm"].items():
            at_reference = reference["grad_norm"][network]
            row |= {network: norm, f"{network}_half_power": at_reference and at_reference * falling}
        rows.append(row)
    return pd.DataFrame(rows).sort_values("train_batch", ignore_index=True)


def _throughput(report: Mapping[str, Any]) -> pd.DataFrame:
    """Rates by arm and clock; `used` marks the clock that r_q comes from."""
    rows = []
    for arm in report["arms"]:
        own = dict(arm["throughput"])
        beside, source = own.pop("beside"), own.pop("source")
        own.pop("flag", None)
        identity = {"arm": arm["arm"], "train_batch": arm["train_batch"], "lr": arm["lr"]}
        if source:
            rows.append({**identity, "clock": source, "used": True, **own, "r_q": arm["r_q"]})
        rows += [
            {**identity, "clock": clock, "used": False, **{k: v for k, v in found.items() if k != "r_q_ci95"}}
            for clock, found in beside.items()
        ]
    names = ["samples_per_s", "tokens_per_s", "generate_s_per_sample", "train_s_per_sample", "r_q"]
    return pd.DataFrame(rows, columns=["arm", "train_batch", "lr", "clock", "used", *names])


def _growth(report: Mapping[str, Any]) -> pd.DataFrame:
    """How time grows with the batch: published, ours with limits, the shares that do not depend on the batch."""
    rows = []
    for row in report["growth"]:
        theirs, ours = row["published"], row["ours"]
        flat = {name: row[name] for name in ("what", "phase", "factor")}
        flat |= {"published": theirs["ratio"], "published_fixed_frac": theirs["fixed_frac"]}
        if ours is not None:
            flat |= dict(zip(("smaller", "larger"), ours["batches"], strict=True))
            flat |= _limits("ours", ours["ratio"]) | _limits("fixed_frac", ours["fixed_frac"])
            flat |= {name: ours[name] for name in ("matched_at", "source")}
        rows.append(flat)
    names = ["what", "phase", "factor", "published", "published_fixed_frac", "smaller", "larger"]
    limits = [f"{name}{end}" for name in ("ours", "fixed_frac") for end in ("", "_low", "_high")]
    return pd.DataFrame(rows, columns=[*names, *limits, "matched_at", "source"])


def _reference(report: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(arm for arm in report["arms"] if arm["arm"] == report["reference_arm"])
    return found
