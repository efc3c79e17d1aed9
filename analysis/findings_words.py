"""Sentences on the findings of the gradient statistics, made from report.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from analysis.labels import short_label
from analysis.words import interval, listed, number

Report = Mapping[str, Any]


def finding_sentences(report: Report) -> list[str]:
    """What the sweep says on prediction, on the unit of the batch and on cadence; nothing on what it does not hold."""
    if not report["learning_signal"]:
        return []
    return [*_prediction(report), *_unit(report), *_cadence(report)]


def percent_off(rms_log_error: float | None) -> str:
    """A root mean square error on the log scale as a factor in percent.

    >>> percent_off(0.128), percent_off(None)
    ('14%', '-')
    """
    return "-" if rms_log_error is None else f"{100 * math.expm1(rms_log_error):.0f}%"


def _prediction(report: Report) -> list[str]:
    """How far both forms are off, and where Adam's is off the most."""
    found, arms = report["prediction"], {arm["arm"]: arm for arm in report["arms"]}
    known = [arm for arm in found["arms"] if arm["adam"]["log_error"] is not None]
    if not known:
        return []
    worst = max(known, key=lambda arm: abs(arm["adam"]["log_error"]))
    own = arms[report["reference_arm"]]["lr_rule"]
    label, rule = short_label(report, arms[worst["arm"]]), arms[worst["arm"]]["lr_rule"]
    label += f" with the {rule} rule" if rule != own else ""
    error = found["rms_log_error"]
    text = f"From the gradient noise of the reference alone (B_noise = {interval(report['noise_scale'], 0)}) r_N is "
    text += f"predicted with an error of {percent_off(error['adam'])} by Adam's form"
    if error["optimal_step"] is not None:
        text += f" and of {percent_off(error['optimal_step'])} by that of an optimal step"
    text += f"; Adam's is worst at {label}, {number(worst['adam']['estimate'])} predicted"
    return [f"{text}, {number(worst['r_N']['estimate'])} measured."]


def _unit(report: Report) -> list[str]:
    """Whether P*G is the unit, and what the split of the noise says about it."""
    groups = report["groups"]
    if groups["unit"] is None:
        return []
    matched = groups["matched"]
    batch = next(arm["train_batch"] for arm in report["arms"] if arm["arm"] == report["reference_arm"])
    held = [f"{m['group_size']}" for m in matched if m["equivalent"] or m["arm"] == report["reference_arm"]]
    text = {
        "P*G": f"P*G is the unit here: {batch:,} responses are worth about the same at G = {listed(held)}",
        "not P*G": "P*G is NOT the unit here",
        "unclear": "Whether P*G is the unit here is not settled",
    }[groups["unit"]]
    off = [f"{interval(m['r_N'])} at G = {m['group_size']}" for m in matched if m["equivalent"] is False]
    if off:
        text += f": with the same {batch:,} responses r_N against G = {groups['group_size']} is {listed(off)}"
        text += f", though G = {listed(held)} are equivalent" if len(held) > 1 else ""
    return [f"{text}.", *_split(groups)]


def _split(groups: Mapping[str, Any]) -> list[str]:
    between, within, equal = groups["between_trace"], groups["within_trace"], groups["equal_group_size"]
    if between["estimate"] is None:
        return []
    digits = trace_digits(groups)
    text = f"The noise of the gradient at the reference is {interval(between, digits)} between prompts and "
    text += f"{interval(within, digits)} within them: "
    if equal["estimate"] is not None:
        return [f"{text}P*G can be the unit while G is far below {interval(equal, 1)}, where the two add the same."]
    return [f"{text}none is resolved between prompts, so P*G should be the unit."]


def trace_digits(groups: Mapping[str, Any]) -> int:
    """Decimals that show the traces of the noise, whose unit depends on the model."""
    return 3 if (groups["within_trace"]["estimate"] or 0) < 10 else 1


def _cadence(report: Report) -> list[str]:
    """How much further the most steps per rollout batch move the policy than the fewest."""
    found = [row for row in report["cadence"] if row["kl"]["estimate"] and row["update_norm"]["estimate"]]
    if len(found) < 2 or found[0]["optimizer_steps_per_batch"] == found[-1]["optimizer_steps_per_batch"]:
        return []
    few, many = found[0], found[-1]
    norm, kl = (many[name]["estimate"] / few[name]["estimate"] for name in ("update_norm", "kl"))
    steps = [f"{row['optimizer_steps_per_batch']:g}" for row in (many, few)]
    text = f"A rollout batch of {many['train_batch']:,} responses in {steps[0]} optimizer steps instead of {steps[1]} "
    text += f"moves the weights {norm:.1f} times as far and the policy {kl:.0f} times as far in KL"
    each = [f"{1000 * row['kl']['estimate']:.3g}" for row in (many, few)]
    return [f"{text} ({each[0]} instead of {each[1]} millinats a token)."]
