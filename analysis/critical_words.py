"""The critical batches side by side, and the operating regime in words; made from report.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.findings_words import percent_off
from analysis.penalty import ALIGNED_HIGH
from analysis.words import interval, number

Report = Mapping[str, Any]


def critical_rows(report: Report) -> list[dict[str, Any]]:
    """A row for each way to a critical batch: group, question, estimate and limits (responses), these in words, how."""
    return [*_training(report), *_generation(report), *_time(report)]


def _row(group: str, name: str, question: str, found: Mapping[str, Any], how: str) -> dict[str, Any]:
    """`name` is for a figure, `question` for the page; a flag of what is missing ends `how`."""
    low, high = found["ci95"]
    flag = f": {found['flag']}" if "flag" in found else ""
    limits = {"estimate": found["estimate"], "low": low, "high": high}
    return {"group": group, "name": name, "question": question, **limits, "value": batch_text(found), "how": how + flag}


def batch_text(found: Mapping[str, Any]) -> str:
    """A batch with its interval, the two between which it lies, or the one beyond which or up to which.

    >>> known = [[128, 256], [512, None], [None, 64]]
    >>> [batch_text({"estimate": None, "ci95": limits}) for limits in known]
    ['128 to 256', '> 512', 'at most 64']
    """
    low, high = found["ci95"]
    if found["estimate"] is None and low is None and high is not None:
        return f"at most {number(high, 0)}"
    if found["estimate"] is None and low is not None and high is not None:
        return f"{number(low, 0)} to {number(high, 0)}"
    return interval(found, 0)


def _training(report: Report) -> list[dict[str, Any]]:
    train, noise = report["critical_batch"]["train"], report["noise_scale"]
    fit, beyond = train["fit"], train["first_not_aligned"]
    aligned = {"estimate": train["largest_aligned"], "ci95": [train["largest_aligned"], beyond]}
    rows = [
        _row(
            "training", "largest aligned", "Largest batch whose curve is aligned", aligned, "equivalence test, outward"
        )
        | {"value": number(train["largest_aligned"], 0)}
    ]
    rows[0]["how"] += f"; first not aligned: {number(beyond, 0)}"
    how = "r_N between the arms on either side, linear on log scales"
    rows.append(
        _row("training", "r_N = 4/3", "Samples have grown by a third: r_N = 4/3", train["four_thirds_batch"], how)
    )
    question = "B_c of the fit: twice the samples of a small batch"
    if "residual" not in fit:
        rows.append(_row("training", "fitted B_c", question, fit, "fit of N* = N0 (1 + B/B_c)"))
    else:
        p = fit["lack_of_fit_p"]
        misfit = "" if p is None else f", lack of fit p = {p:.2g}"
        how = f"fit of N* = N0 (1 + B/B_c), residual {100 * fit['residual']:.1f}%{misfit}"
        flag = {"flag": fit["flag"]} if "flag" in fit else {}
        rows.append(
            _row("training", "fitted B_c", question, {"estimate": fit["critical_batch"], **_limits(fit)} | flag, how)
        )
        twenty = {"estimate": train["twenty_percent_batch"], "ci95": train["twenty_percent_ci95"]}
        how = "the same fit: B_c / 5 + 1.2 B_ref (Zhang et al., arXiv:2410.21676)"
        rows.append(_row("training", "20% more samples", "Batch that needs 20% more samples", twenty, how))
    for name, question, found in (
        ("noise, in updates", "Gradient noise scale, measured within the reference's updates", noise),
        ("noise, of norms", "Gradient noise scale, from the norms of two batches", noise["from_norms"]),
    ):
        rows.append(_row("training", name, question, found, "tr(S) / |G|^2"))
    return rows


def _limits(fit: Mapping[str, Any]) -> dict[str, Any]:
    return {"ci95": fit["ci95"]}


def _generation(report: Report) -> list[dict[str, Any]]:
    generation = report["critical_batch"]["generation"]
    return [
        _row(
            "generation",
            f"90% of {unit}/s",
            f"Responses in flight that fill generation, by {unit} per second",
            generation[key],
            "90% of the plateau of the generate phase alone",
        )
        for key, unit in (("samples", "responses"), ("tokens", "tokens"))
    ]


def _time(report: Report) -> list[dict[str, Any]]:
    model = report["time_model"]
    half, optimum = model["half_speed_batch"], model["optimum"]
    residual = f", residual {100 * half['residual']:.1f}%" if "residual" in half else ""
    rows = [
        _row(
            "time",
            "half speed, B_h",
            "B_h: half of the largest end-to-end rate",
            half,
            f"fit of 1/q = (1 + B_h/B) / q_max{residual}",
        ),
        _row("time", "least time, fitted", "Least time by the closed form", optimum, "sqrt(B_c B_h), given both forms"),
    ]
    best = next((arm for arm in model["arms"] if arm["arm"] == model["best_arm"]), None)
    if best is not None and len({arm["train_batch"] for arm in model["arms"]}) > 1:
        found = {"estimate": best["train_batch"], "ci95": [None, None]}
        how = f"r_T {number(best['r_T'])}"
        how += f"; by the closed form {number(best['closed_form'])}" if best["closed_form"] is not None else ""
        rows.append(_row("time", "least time, run", "Least time of the arms that were run", found, how))
        rows[-1]["value"] = number(best["train_batch"], 0)
    return rows


def regime_sentences(report: Report) -> list[str]:
    """Which knee comes first as the batch grows; nothing where that is not known."""
    knee, generation = (
        report["critical_batch"]["train"]["four_thirds_batch"],
        report["critical_batch"]["generation"]["samples"],
    )
    filled, lost = batch_text(generation), batch_text(knee)
    reached = f"r_N reaches 4/3 at B = {lost}"
    sure = _surely_below(report)
    never = f"r_N {'stays below' if sure else 'is not shown to reach'} 4/3 up to B = {_largest(report):,}"
    worth = ": larger batches are worth a try" if sure else ""
    found = {
        "generation_first": (
            f"Generation is filled first: {filled} responses in flight have 90% of its largest rate, while "
            f"{never if _unreached(knee) else reached}; between the two a larger batch costs little."
        ),
        "training_first": (
            f"Samples are lost first: {reached}, while generation "
            + (
                f"has 90% of its largest rate only from {filled} responses in flight"
                if generation["reached"]
                else "still gains at the largest batch"
            )
            + "; from there on a batch pays only as far as q grows faster than r_N."
        ),
        "not_told_apart": (
            f"Neither knee is shown to come first: {reached}, and generation has 90% of its largest rate from {filled} "
            "responses in flight."
        ),
        "neither_reached": f"No knee is reached: {never}, and generation still gains{worth}.",
    }
    return [found[report["regime"]]] if report["regime"] in found else []


def _surely_below(report: Report) -> bool:
    """Whether every arm of the reference's rule has an upper limit of r_N below 4/3."""
    own = next(arm["lr_rule"] for arm in report["arms"] if arm["arm"] == report["reference_arm"])
    limits = [arm["r_N"]["ci95"][1] for arm in report["arms"] if arm["lr_rule"] == own]
    return all(limit is not None and limit < ALIGNED_HIGH for limit in limits)


def _unreached(knee: Mapping[str, Any]) -> bool:
    return knee["estimate"] is None and knee["ci95"][1] is None


def _largest(report: Report) -> int:
    own = next(arm["lr_rule"] for arm in report["arms"] if arm["arm"] == report["reference_arm"])
    arms = [arm for arm in report["arms"] if arm["lr_rule"] == own]
    return max(int(arm["train_batch"]) for arm in [found for found in arms if found["num_seeds"]] or arms)


def closed_form_sentence(report: Report) -> str | None:
    """The minimum of the closed form beside the best arm that was run."""
    model = report["time_model"]
    optimum, error = model["optimum"], model["rms_log_error"]
    if optimum["estimate"] is None or error is None:
        return None
    best = next(arm for arm in model["arms"] if arm["arm"] == model["best_arm"])
    text = f"The closed form T ~ (1 + B/B_c)(1 + B_h/B) is least at B = {interval(optimum, 0)}, where it gives r_T "
    text += f"{number(model['r_T_at_optimum'])}; of the batches that were run {best['train_batch']:,} is fastest, r_T "
    text += f"{number(best['r_T'])}. Over all of them the form is off by {percent_off(error)} (root mean square)."
    return text
