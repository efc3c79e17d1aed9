"""How the answer depends on the target, in words; made from report.json."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from analysis.labels import short_label
from analysis.words import listed, number

Report = Mapping[str, Any]


def target_rows(report: Report) -> list[dict[str, str]]:
    """One row per target: the arm to use, its r_T, what is not told apart from it, the aligned arms."""
    return [
        {
            "target": f"{level['target']:g}",
            "arm": _name(report, level["recommendation"]["arm"]),
            "r_T": number(level["recommendation"]["r_T"]),
            "ties": _names(report, level["recommendation"]["ties"]),
            "aligned": _names(report, [arm["arm"] for arm in level["arms"] if arm["aligned"]]),
        }
        for level in report["targets"]["levels"]
    ]


def target_sentence(report: Report) -> str | None:
    """Whether the recommendation is the same at all targets; None where there is only one."""
    targets = report["targets"]
    levels, agreement = targets["levels"], targets["recommendation"]
    if agreement is None:
        return None
    span = f"every target from {levels[0]['target']:g} to {levels[-1]['target']:g}"
    if agreement == "same":
        return f"The recommendation is the same at {span}."
    others = _stretches(report)
    if agreement == "not told apart":
        return f"At {span} the recommendation is the same or one not told apart from it: {others}."
    return f"The recommendation changes with the target: {others}."


def target_headline(report: Report) -> list[str]:
    """The sentence where the recommendation changes with the target; otherwise nothing."""
    sentence = target_sentence(report) if report["targets"]["recommendation"] == "changes" else None
    return [sentence] if sentence else []


def _stretches(report: Report) -> str:
    """`B = 128 from 0.4 to 0.5 and at 0.7, B = 256 at 0.75`: arms in order of their first target."""
    levels = report["targets"]["levels"]
    found: dict[str, list[str]] = {}
    for arm, own in itertools.groupby(levels, key=lambda level: level["recommendation"]["arm"]):
        values = [f"{level['target']:g}" for level in own]
        text = f"at {values[0]}" if len(values) == 1 else f"from {values[0]} to {values[-1]}"
        found.setdefault(_name(report, arm), []).append(text)
    return "; ".join(f"{name} {listed(places)}" for name, places in found.items())


def _name(report: Report, name: str | None) -> str:
    if name is None:
        return "-"
    arms = {arm["arm"]: arm for arm in report["arms"]}
    own = arms[report["reference_arm"]]["lr_rule"]
    label = short_label(report, arms[name]) if arms[name]["lr_rule"] == own else name
    return f"{label} (reference)" if name == report["reference_arm"] else label


def _names(report: Report, names: list[str]) -> str:
    return ", ".join(_name(report, name) for name in names) or "-"
