"""The critical batches, the closed form of the time and the operating regime, as report.json has them."""

from __future__ import annotations

from typing import Any

from analysis.critical import PLATEAU_FRAC, HyperbolaFit, Plateau
from analysis.penalty import Interval
from analysis.plain import interval_json
from analysis.regime import TimeModel
from analysis.scales import Scales


def critical_report(scales: Scales) -> dict[str, Any]:
    """The keys `critical_batch`, `time_model` and `regime` of report.json."""
    model = TimeModel(scales)
    batches = {"train": _train(scales, model), "generation": _generation(scales)}
    return {"critical_batch": batches, "time_model": _time_model(scales, model), "regime": model.regime}


def _train(scales: Scales, model: TimeModel) -> dict[str, Any]:
    study, reference = scales.study, model.reference_batch
    aligned = [scales.train_batch[arm] for arm in scales.aligned_range]
    broken = [scales.train_batch[arm] for arm in scales.family if study.aligned[arm] is False]
    fits = {"fit": scales.fit(1.0), "fit_square_root": scales.fit(0.5)}
    twenty = fits["fit"].twenty_percent_batch(reference) if fits["fit"] else Interval()
    return {
        "largest_aligned": max(aligned) if study.learning else None,
        "smallest_aligned": min(aligned) if study.learning else None,
        "first_not_aligned": min((batch for batch in broken if batch > reference), default=None),
        "four_thirds_batch": interval_json(model.training_knee, _why_no_knee(scales, model.training_knee)),
        **{name: _fit(fit) for name, fit in fits.items()},
        "twenty_percent_batch": twenty.estimate,
        "twenty_percent_ci95": [twenty.low, twenty.high],
        "noise_scale": interval_json(scales.noise_scale().interval, "see noise_scale"),
    }


def _why_no_knee(scales: Scales, knee: Interval) -> str:
    if knee.bound == "lower":
        largest = max(scales.train_batch[arm] for arm in scales.family if scales.study.groups[arm])
        return f"not reached up to B = {largest:,}"
    if knee.low is not None and knee.high is not None:
        return "" if knee.estimate is not None else "between these two batches: seeds of the larger miss the target"
    return "fewer than two batches" if knee.estimate is None else "one seed an arm: no interval"


def _fit(fit: HyperbolaFit | None) -> dict[str, Any]:
    """r_N = (1 + B/B_c)^power / (1 + B_ref/B_c)^power."""
    if fit is None:
        return interval_json(Interval(), "fewer than three batches with every seed at the target")
    flag = "no rise of N* with the batch is resolved" if fit.interval.high is None else ""
    found = {"critical_batch": fit.interval.estimate, "ci95": [fit.interval.low, fit.interval.high], "power": fit.power}
    found |= {"samples_at_zero": fit.samples_at_zero, "residual": fit.residual, "lack_of_fit_p": fit.lack_of_fit_p}
    return found | ({"flag": flag} if flag else {})


def _generation(scales: Scales) -> dict[str, Any]:
    found: dict[str, Any] = {"plateau_frac": PLATEAU_FRAC}
    for name, column in (("samples", "generated_per_s"), ("tokens", "generated_tokens_per_s")):
        plateau, source = scales.generation_plateau(column)
        found |= {name: _plateau(plateau), "source": source}
    return found


def _plateau(plateau: Plateau | None) -> dict[str, Any]:
    if plateau is None:
        return interval_json(Interval()) | {"per_s": None, "reached": None, "flag": "fewer than two batches measured"}
    flag = "the smallest batch has it already" if plateau.interval.bound else ""
    if not plateau.reached:
        flag = "not reached: the rate still grows at the largest batch"
    return interval_json(plateau.interval, flag) | {"per_s": plateau.per_s, "reached": plateau.reached}


def _time_model(scales: Scales, model: TimeModel) -> dict[str, Any]:
    """T ~ (1 + B/B_c) (1 + B_h/B) beside the measured r_T."""
    fit, optimum = model.speed_fit, model.optimum
    half = interval_json(model.half_speed_batch, "" if fit else "fewer than three batches with seconds")
    if fit:
        half |= {"residual": fit.residual, "lack_of_fit_p": fit.lack_of_fit_p}
    arms = [
        {
            "arm": arm,
            "train_batch": scales.train_batch[arm],
            "r_T": r_T,
            "closed_form": model.r_T(scales.train_batch[arm]),
        }
        for arm, r_T in model.measured.items()
    ]
    return {
        "half_speed_batch": half,
        "optimum": interval_json(optimum.interval, optimum.flag or ""),
        "r_T_at_optimum": optimum.r_T,
        "best_arm": model.best_arm,
        "arms": arms,
        "rms_log_error": model.rms_log_error(),
    }
