"""Two sweeps side by side: what moved, by how much, and what else differs between them.

The sweeps are independent; limits of ratios and differences come from those of the two numbers (analysis.independent).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.compare_words import compare_headline
from analysis.independent import difference, ratio
from analysis.load import Sweep
from analysis.penalty import Interval
from analysis.plain import interval_json, plain
from analysis.results import Results, analyse
from analysis.settings import differences, unstated


@dataclass(frozen=True)
class Side:
    """One of the two sweeps with its results."""

    sweep: Sweep
    results: Results

    @property
    def reference(self) -> Mapping[str, Any]:
        """The row of the reference arm in report.json."""
        report = self.results.report
        found: Mapping[str, Any] = next(arm for arm in report["arms"] if arm["arm"] == report["reference_arm"])
        return found


def compare_sweeps(first: Sweep, second: Sweep) -> dict[str, Any]:
    """What moved from one sweep to another, each at its own target: compare.json (results/README.md) as a dict.

    Ratios and differences are of the second to the first, with 95% limits. Raises InputError where one of them has no
    data.
    """
    return compare_sides(Side(first, analyse(first)), Side(second, analyse(second)))


def compare_sides(first: Side, second: Side) -> dict[str, Any]:
    """The content of compare.json, its words included."""
    sides = (first, second)
    found = {
        "format": 1,
        "sweeps": [_about(side) for side in sides],
        "differences": differences(first.sweep, second.sweep),
        "unstated": unstated(first.sweep, second.sweep),
        "matched_by": matched_by(sides),
        "quantities": [_quantity(name, unit, _pair(sides, path)) for name, unit, path in QUANTITIES],
        "slopes": {network: _slope(sides, network) for network in ("actor", "critic")},
        "arms": [_arm(pair) for pair in matched_arms(sides)],
        "errors": [f"{name(side, sides)}: {text}" for side in sides for text in side.results.report["errors"]],
        "warnings": [f"{name(side, sides)}: {text}" for side in sides for text in side.results.report["warnings"]],
    }
    content: dict[str, Any] = plain(found)
    return content | {"headline": compare_headline(content, [name(side, sides) for side in sides])}


def name(side: Side, sides: Sequence[Side]) -> str:
    """The sweep's name; where both have one name, with the folder that tells them apart: `default in there`."""
    names = [other.sweep.name for other in sides]
    if len(set(names)) == len(names):
        return side.sweep.name
    own, *others = (other.sweep.path.resolve().parts for other in (side, *(o for o in sides if o is not side)))
    away = [part for part in own if part not in others[0]]
    return f"{side.sweep.name} in {away[-1] if away else '/'.join(own[-2:])}"


def _about(side: Side) -> dict[str, Any]:
    report = side.results.report
    kept = ("sweep", "question", "target", "reference_arm", "recommendation", "learning_signal")
    train = report["critical_batch"]["train"]
    aligned = [train["smallest_aligned"], train["largest_aligned"]]
    about = {key: report[key] for key in kept} | {"path": str(side.sweep.path), "aligned_range": aligned}
    return about | {"reference_batch": side.reference["train_batch"], "first_not_aligned": train["first_not_aligned"]}


# (name, unit, where it is: keys of report.json, of the reference's row where the first is "reference").
QUANTITIES = (
    ("N* of the reference", "samples", ("reference", "samples_to_target")),
    ("B_c of the fit", "responses", ("critical_batch", "train", "fit")),
    ("batch with r_N = 4/3", "responses", ("critical_batch", "train", "four_thirds_batch")),
    ("gradient noise scale", "responses", ("noise_scale",)),
    ("responses in flight that fill generation", "responses", ("critical_batch", "generation", "samples")),
    ("q of the reference", "samples per second", ("reference", "throughput")),
)


def _pair(sides: Sequence[Side], path: Sequence[str]) -> tuple[Interval, Interval]:
    first, second = (_read(side, path) for side in sides)
    return first, second


def _read(side: Side, path: Sequence[str]) -> Interval:
    value: Any = {"reference": side.reference, **side.results.report}
    for key in path:
        value = value[key]
    return interval_of(value)


def interval_of(value: Mapping[str, Any]) -> Interval:
    """An interval of report.json: `estimate`, or what stands for it in a fit or in a throughput, with ci95."""
    estimate = next((value[key] for key in ("estimate", "critical_batch", "samples_per_s") if key in value), None)
    low, high = value.get("ci95", (None, None))
    return Interval(estimate, low, high, value.get("bound"))


def _quantity(title: str, unit: str, pair: tuple[Interval, Interval]) -> dict[str, Any]:
    values = [interval_json(value) for value in pair]
    return {"name": title, "unit": unit, "values": values, "ratio": interval_json(ratio(*pair))}


def _slope(sides: Sequence[Side], network: str) -> dict[str, Any]:
    rows = [side.results.report["gradient_slope"][network] for side in sides]
    pair = [Interval(row["slope"], *row["ci95"]) for row in rows]
    ranges = [row["train_batch_range"] for row in rows]
    values = [interval_json(value) | {"train_batch_range": span} for value, span in zip(pair, ranges, strict=True)]
    return {"values": values, "difference": interval_json(difference(*pair))}


def matched_by(sides: Sequence[Side]) -> str:
    """What makes arms of the two a pair: the batch, where the references have one batch, else B / B_ref."""
    first, second = (side.reference["train_batch"] for side in sides)
    return "train_batch" if first == second else "kappa"


def matched_arms(sides: Sequence[Side]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Pairs of arms with one learning-rate rule and one batch (or B / B_ref), by batch; among several by name or G."""
    by = matched_by(sides)
    keyed: list[dict[tuple[Any, ...], list[Mapping[str, Any]]]] = []
    for side in sides:
        rows: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for arm in side.results.report["arms"]:
            batch = arm["train_batch"]
            place = batch if by == "train_batch" else batch / side.reference["train_batch"]
            rows.setdefault((place, arm["lr_rule"]), []).append(arm)
        keyed.append(rows)
    found = []
    for key in sorted(keyed[0].keys() & keyed[1].keys()):
        found += _pairs(keyed[0][key], keyed[1][key])
    return found


def _pairs(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> list[tuple[Any, Any]]:
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    for key in ("arm", "group_size"):
        ours, theirs = ({arm[key]: arm for arm in arms} for arms in (first, second))
        if ours.keys() & theirs.keys() and (len(ours), len(theirs)) == (len(first), len(second)):
            return [(ours[value], theirs[value]) for value in ours if value in theirs]
    return []


def _arm(pair: tuple[Mapping[str, Any], Mapping[str, Any]]) -> dict[str, Any]:
    """A pair of arms: what each is, and r_N, r_q, r_T of both with the second's over the first's."""
    keys = ("arm", "train_batch", "group_size", "verdict", "aligned")
    found: dict[str, Any] = {key: [arm[key] for arm in pair] for key in keys} | {"lr_rule": pair[0]["lr_rule"]}
    for key in ("r_N", "r_q", "r_T"):
        values = [_ratio_of(arm, key) for arm in pair]
        found[key] = {"values": [interval_json(v) for v in values], "ratio": interval_json(ratio(*values))}
    return found


def _ratio_of(arm: Mapping[str, Any], key: str) -> Interval:
    if key == "r_q":
        return Interval(arm["r_q"], *arm["r_q_ci95"])
    return interval_of(arm[key])
