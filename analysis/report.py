"""report.json: the results of a study as plain data. Unknown and infinite values are null with a flag, never NaN."""

from __future__ import annotations

import math
from typing import Any

from analysis.by_target import by_target
from analysis.caveats import caveats_of, errors_of
from analysis.critical_report import critical_report
from analysis.findings import findings, noise_json
from analysis.growth_report import speed_of
from analysis.penalty import ALIGNED_HIGH, ALIGNED_LOW, Interval, update_ratio
from analysis.plain import interval_json, plain
from analysis.roles import roles
from analysis.scales import Scales, Slope
from analysis.staleness import staleness_report
from analysis.study import Study, Trial
from analysis.target import HOLD

# Chosen before any data, for every sweep alike.
PAIRING = (
    "seeds are not paired across arms: trajectories that share a seed part after the first updates, and pairing would "
    "cost degrees of freedom; rounds of the timing pass are paired; the slope of the gradient is fitted seed by seed"
)
POOLING = (
    "one spread of log N* for all arms, by restricted likelihood where seeds miss the target; in the band of a distance"
    " one variance for the two arms at each point; for B_h one spread of log q within the rounds of the timing pass"
)
CONTRACT_AXES = ("algorithm", "num_prompts", "group_size", "train_batch", "lr_rule", "lr")


def build_report(study: Study, scales: Scales) -> dict[str, Any]:
    """Everything report.json holds (results/README.md)."""
    sweep, advice = study.sweep, study.recommendation
    speed, problems = speed_of(scales)
    report = {
        "format": 1,
        "sweep": sweep.name,
        "question": sweep.question,
        "target": {"metric": sweep.metric, "value": sweep.target, "rule": sweep.target_rule},
        "reference_arm": sweep.reference_arm,
        "learning_signal": study.learning,
        "arms": [_arm(study, scales, arm) for arm in study.arms],
        "gradient_slope": {network: _slope(scales.slope(network)) for network in ("actor", "critic")},
        "gradient_window_samples": scales.window_samples,
        "noise_scale": noise_json(scales.noise_scale()) | {"from_norms": noise_json(scales.noise_scale_from_norms())},
        "targets": by_target(study),
        **critical_report(scales),
        **findings(scales),
        **speed,
        "roles": roles(scales),
        "staleness": staleness_report(scales),
        "recommendation": {"arm": advice.arm, "r_T": advice.r_T, "reason": advice.reason, "ties": list(advice.ties)},
        "excluded": excluded(study),
        "errors": errors_of(study) + problems,
        "warnings": caveats_of(study),
        "method": _method(study),
    }
    found: dict[str, Any] = plain(report)
    return found


def excluded(study: Study) -> list[dict[str, str]]:
    """The planned trials that are no data, with the reason: unfinished, copies, without the target metric."""
    rows = []
    for trial_id, row in study.sweep.trials.iterrows():
        if trial_id not in study.curves:
            status, reason = row["status"], row["reason"]
            if trial_id in study.copies:
                status, reason = "copy", f"its curve is that of {study.copies[trial_id]}: the seed reached nothing"
            elif trial_id in study.sweep.finished.index:
                reason = f"no evaluation of {study.sweep.metric}"
            rows.append({"trial_id": trial_id, "status": status, "reason": reason})
    return rows


def _arm(study: Study, scales: Scales, arm: str) -> dict[str, Any]:
    axes = study.sweep.arms.loc[arm]
    trials = [trial for trial in study.trials if trial.arm == arm]
    r_N, r_N_90, r_q = study.r_N(arm), study.r_N(arm, 0.90), study.r_q(arm)
    verdict, reason = study.verdict(arm)
    reference_batch = scales.train_batch[study.reference]
    ratio = update_ratio(r_N, scales.train_batch[arm], reference_batch)
    missing = _why_missing(study, arm)
    return {
        "arm": arm,
        **{name: axes[name] for name in CONTRACT_AXES},
        "axes": {name: value for name, value in axes.items() if name not in CONTRACT_AXES},
        "num_seeds": len(trials),
        "num_censored": sum(trial.crossing.censored is not None for trial in trials),
        "samples_to_target": interval_json(study.samples_to_target(arm), missing)
        | {"per_seed": list(map(_seed, trials))},
        "update_ratio": {"interval" if key == "ci95" else key: v for key, v in interval_json(ratio, missing).items()},
        "r_N": interval_json(r_N, missing) | {"ci90": [r_N_90.low, r_N_90.high]},
        "throughput": _throughput(study, arm),
        "r_q": r_q.estimate,
        "r_q_ci95": [r_q.low, r_q.high],
        "r_T": interval_json(study.r_T(arm), missing or _why_no_r_T(study, arm)),
        "r_T_rounded": interval_json(study.r_T(arm, "rounded"), missing),
        "r_T_thinned": interval_json(study.r_T(arm, "thinned"), missing),
        "time_to_target_s": study.time_to_target_s(arm),
        "verdict": verdict,
        "verdict_reason": reason,
        "aligned": study.aligned[arm],
        "curve_distance": _distance(study, arm),
        "grad_norm": {network: scales.norm(arm, network) for network in ("actor", "critic")},
    }


def _seed(trial: Trial) -> dict[str, Any]:
    crossing = trial.crossing
    return {
        "seed": trial.seed,
        "below": None if crossing.below is None else int(crossing.below),
        "above": None if crossing.above is None else int(crossing.above),
        "estimate": crossing.estimate,
        "censored": crossing.censored is not None,
        "bound": {None: None, "right": "lower", "left": "upper"}[crossing.censored],
        "trial_id": trial.trial_id,
    }


def _why_missing(study: Study, arm: str) -> str:
    """Why N* or r_N of an arm lacks its estimate or its limits; "" where it lacks nothing."""
    own, reference = (study.samples["interpolated"][name] for name in (arm, study.reference))
    trials = [trial for trial in study.trials if trial.arm == arm]
    if not trials:
        return "no finished trial"
    if not own.size:
        return "the target is reached before training"
    if len(own.bounds):
        return f"{len(own.bounds)} of {own.size} seeds do not reach the target: a bound"
    if not reference.complete:
        return "not every seed of the reference reaches the target"
    return "one seed an arm: no interval" if study.spread.df == 0 else ""


def _why_no_r_T(study: Study, arm: str) -> str:
    if study.r_q(arm).estimate is None:
        return "no seconds were recorded"
    return "throughput was measured once: no interval" if study.r_q(arm).low is None else ""


def _throughput(study: Study, arm: str) -> dict[str, Any]:
    """The rates that r_q comes from, and beside them those of the other clock."""
    names = ("samples_per_s", "tokens_per_s", "generate_s_per_sample", "train_s_per_sample")
    chosen = study.clock(arm)
    by_clock = {}
    for source, clock in study.clocks.items():
        mean = clock.log_ratio(arm, study.reference)
        ratio = mean.interval().map(math.exp) if mean else Interval()
        rates: dict[str, Any] = {name: clock.means(arm)[name] for name in names}
        by_clock[source] = rates | {"r_q": ratio.estimate, "r_q_ci95": [ratio.low, ratio.high]}
    used = by_clock[chosen.source] if chosen else dict.fromkeys(names)
    found = {name: used[name] for name in names} | {"source": chosen.source if chosen else None}
    if not chosen:
        found["flag"] = "no seconds were recorded"
    return found | {"beside": {source: rates for source, rates in by_clock.items() if rates is not used}}


def _distance(study: Study, arm: str) -> dict[str, Any] | None:
    found = study.bands.get(arm)
    if found is None:
        return None
    return {
        "largest": found.largest,
        "difference": found.difference_M[found.place],
        "at_samples": found.samples_M[found.place],
        "band95": [found.low, found.high],
    }


def _slope(slope: Slope) -> dict[str, Any]:
    found: dict[str, Any] = {
        "slope": slope.interval.estimate,
        "ci95": [slope.interval.low, slope.interval.high],
        "train_batch_range": list(slope.train_batch_range or (None, None)),
    }
    return found | ({"flag": slope.flag} if slope.flag else {})


def _method(study: Study) -> dict[str, Any]:
    spread = study.spread
    return {
        "samples_to_target": "isotonic regression of the scores over the evaluations, monotone cubic interpolation",
        "hold_frac": HOLD,
        "intervals": "Student's t on the log scale, spread over seeds pooled over the arms",
        "seeds_paired": False,
        "pairing": PAIRING,
        "pooling": POOLING,
        "band": "Student's t at each point with the quantile of the largest over all points, by simulation",
        "spread_sd_log": spread.sd if spread.df else None,
        "spread_df": spread.df,
        "aligned": f"90% interval of r_N inside [{ALIGNED_LOW:.4f}, {ALIGNED_HIGH:.4f}], tested outward",
        "coarsest_spacing_samples": study.coarsest_spacing,
        "given": "intervals are over seeds, given the one warm start that all arms share",
    }
