"""What the gradient statistics add to report.json: predictions of r_N, the unit of the batch, cadence."""

from __future__ import annotations

from typing import Any

from analysis.cadence import cadences
from analysis.gradients import NoiseScale
from analysis.groups import Groups, Matched
from analysis.plain import interval_json
from analysis.prediction import log_error, predict
from analysis.reach import reaches
from analysis.scales import Scales

FORMS = ("optimal_step", "adam")


def findings(scales: Scales) -> dict[str, Any]:
    """The keys `prediction`, `groups`, `cadence` and `reach` of report.json."""
    found = {"prediction": _prediction(scales), "groups": _groups(scales), "cadence": _cadence(scales)}
    return found | {"reach": _reach(scales)}


def _prediction(scales: Scales) -> dict[str, Any]:
    found = predict(scales)
    arms = []
    for arm in found.arms:
        forms = {form: getattr(arm, form) for form in FORMS}
        each: dict[str, Any] = {
            form: interval_json(value) | {"log_error": log_error(value, arm.measured)} for form, value in forms.items()
        }
        arms.append({"arm": arm.arm, "r_N": interval_json(arm.measured), **each})
    errors = {form: found.rms_log_error(form) for form in FORMS}
    return {"arms": arms, "rms_log_error": errors} | ({"flag": found.flag} if found.flag else {})


def noise_json(noise: NoiseScale) -> dict[str, Any]:
    """A noise scale with its parts."""
    found = interval_json(noise.interval) | {"signal_sq": noise.signal_sq, "noise_trace": noise.trace}
    return found | ({"flag": noise.flag} if noise.flag else {})


def _groups(scales: Scales) -> dict[str, Any]:
    groups = Groups(scales)
    reference = scales.study.reference
    equal = groups.equal_size()
    return {
        "group_size": groups.group_size[reference],
        "between_trace": interval_json(groups.trace("between"), "not recorded"),
        "within_trace": interval_json(groups.trace("within"), "not recorded"),
        "equal_group_size": interval_json(equal.interval) | ({"flag": equal.flag} if equal.flag else {}),
        "unit": groups.unit,
        "matched": [_matched(found) for found in groups.matched],
    }


def _matched(found: Matched) -> dict[str, Any]:
    names = ("r_N", "optimal_step", "adam", "dead_frac", "noise_trace", "split_trace")
    intervals = {name: interval_json(getattr(found, name)) for name in names}
    return {"arm": found.arm, "group_size": found.group_size, "equivalent": found.equivalent} | intervals


def _cadence(scales: Scales) -> list[dict[str, Any]]:
    return [
        {
            "arm": found.arm,
            "optimizer_steps_per_batch": found.optimizer_steps,
            "train_batch": found.train_batch,
            "update_norm": interval_json(found.update_norm),
            "kl": interval_json(found.kl, "not recorded"),
            "update_norm_per_sample": found.per_sample(found.update_norm),
            "kl_per_sample": found.per_sample(found.kl),
        }
        for found in cadences(scales)
    ]


def _reach(scales: Scales) -> list[dict[str, Any]]:
    return [
        {
            "way": found.way,
            "batch": interval_json(found.interval, "not passed" if found.interval.bound else ""),
            "start": found.start,
            "start_r_N": interval_json(found.start_r_N),
            "arms": list(found.arms),
            "largest": found.largest,
        }
        for found in reaches(scales.study)
    ]
