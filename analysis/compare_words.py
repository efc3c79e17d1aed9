"""Two sweeps in words and as tables, made from the content of compare.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.words import interval, listed

Content = Mapping[str, Any]
KINDS_THAT_FORBID = ("metric", "target")


def compare_headline(found: Content, names: Sequence[str]) -> list[str]:
    """What a reader has to know: whether they can be compared at all, what moved, what each should use."""
    return [*_not_comparable(found, names), *_moved(found, names), _aligned(found, names), _penalties(found, names),
            _advice(found, names), *_differences(found)]  # fmt: skip


def _not_comparable(found: Content, names: Sequence[str]) -> list[str]:
    rows = [row for row in found["differences"] if row["kind"] in KINDS_THAT_FORBID]
    if not rows:
        return []
    parts = [
        f"the {row['field']} is {row['values'][0]} in {names[0]} and {row['values'][1]} in {names[1]}" for row in rows
    ]
    advice = "; --target names one for both" if rows[0]["kind"] == "target" else ""
    return [f"N* and r_N cannot be compared as they are: {listed(parts)}{advice}."]


def _moved(found: Content, names: Sequence[str]) -> list[str]:
    """A sentence for the fit's critical batch and one for the noise scale, where both sweeps know it."""
    sentences = []
    for row in found["quantities"]:
        if row["unit"] == "responses" and None not in [value["estimate"] for value in row["values"]]:
            both = [f"{interval(value, 0)} in {name}" for value, name in zip(row["values"], names, strict=True)]
            title = row["name"] if row["name"][1] == "_" else row["name"][0].upper() + row["name"][1:]
            sentences.append(f"{title}: {listed(both)}; {interval(row['ratio'])} times{_direction(row['ratio'])}.")
    return sentences or ["Neither the critical batch nor the noise scale is known in both."]


def _direction(ratio: Mapping[str, Any]) -> str:
    low, high = ratio["ci95"]
    if low is None or high is None:
        return ", without an interval"
    return ", shown to be larger" if low > 1 else ", shown to be smaller" if high < 1 else ", so no move is shown"


def _aligned(found: Content, names: Sequence[str]) -> str:
    parts = []
    for sweep, name in zip(found["sweeps"], names, strict=True):
        low, high = sweep["aligned_range"]
        span = (
            "nothing is known" if low is None else f"B = {low:,} alone" if low == high else f"B = {low:,} to {high:,}"
        )
        parts.append(f"{span} in {name}")
    return f"Aligned with the reference: {listed(parts)}."


def _penalties(found: Content, names: Sequence[str]) -> str:
    rows = [row for row in found["arms"] if row["r_N"]["ratio"]["estimate"] is not None or _told(row["r_N"]["ratio"])]
    rows = [row for row in rows if row["r_N"]["ratio"]["ci95"] != [1.0, 1.0]]
    if not rows:
        return "No arm beside the reference has an r_N in both."
    moved = [f"{label(row)}, {interval(row['r_N']['ratio'])} times" for row in rows if _told(row["r_N"]["ratio"])]
    if not moved:
        return f"At none of the {len(rows)} arms that both have is r_N shown to differ."
    text = f"r_N of {names[1]} over that of {names[0]} is shown to differ from 1 at {len(moved)} of {len(rows)}"
    return f"{text} common arms: {'; '.join(moved)}."


def _told(ratio: Mapping[str, Any]) -> bool:
    """Whether the interval excludes 1."""
    low, high = ratio["ci95"]
    return (low is not None and low > 1) or (high is not None and high < 1)


def label(row: Mapping[str, Any]) -> str:
    """`B = 256 fixed`, or where the references differ in batch `B = 128 and 512 fixed`."""
    batches = " and ".join(f"{batch:,}" for batch in dict.fromkeys(row["train_batch"]))
    return f"B = {batches} {row['lr_rule']}"


def _advice(found: Content, names: Sequence[str]) -> str:
    parts = []
    for sweep, name in zip(found["sweeps"], names, strict=True):
        advice = sweep["recommendation"]
        parts.append(
            f"{name}: {advice['arm'] or 'nothing can be said'}"
            + (f" (r_T {advice['r_T']:.2f})" if advice["r_T"] else "")
        )
    return f"Recommended: {'; '.join(parts)}."


def _differences(found: Content) -> list[str]:
    """The kinds of settings that differ, with up to three fields of each, and those that only one of the two states."""
    kinds: dict[str, list[str]] = {}
    for row in found["differences"]:
        fields = kinds.setdefault(row["kind"], [])
        fields.append(f"{row['field']} {_value(row['values'][0])} / {_value(row['values'][1])}")
    parts = []
    for kind, fields in kinds.items():
        more = f" and {len(fields) - 3} more" if len(fields) > 3 else ""
        parts.append(f"{kind} ({', '.join(fields[:3])}{more})")
    if not parts:
        text = "No setting that both state differs"
    else:
        text = "Of what both state, they differ in " + ("nothing but " if len(parts) == 1 else "") + "; ".join(parts)
    kept_apart = found["unstated"]
    if not kept_apart:
        return [f"{text}."]
    return [f"{text}.", f"Stated by one of them only, so not compared: {listed(kept_apart)}."]


def _value(value: Any) -> str:
    text = "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."


def compare_tables(found: Content) -> dict[str, pd.DataFrame]:
    """Frames by name: quantities and arms, with `_1`, `_2` for the sweeps and `_ratio` for second over first."""
    return {"quantities": _quantity_rows(found), "arms": _arm_rows(found)}


def _limits(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value["estimate"], f"{name}_low": value["ci95"][0], f"{name}_high": value["ci95"][1]}


def _quantity_rows(found: Content) -> pd.DataFrame:
    rows = []
    for row in found["quantities"]:
        first, second = row["values"]
        own = {"quantity": row["name"], "unit": row["unit"]}
        rows.append(own | _limits("value_1", first) | _limits("value_2", second) | _limits("ratio", row["ratio"]))
    return pd.DataFrame(rows)


def _arm_rows(found: Content) -> pd.DataFrame:
    rows = []
    for row in found["arms"]:
        own: dict[str, Any] = {"lr_rule": row["lr_rule"]}
        for key in ("arm", "train_batch", "group_size", "verdict"):
            own |= {f"{key}_1": row[key][0], f"{key}_2": row[key][1]}
        for key in ("r_N", "r_q", "r_T"):
            first, second = row[key]["values"]
            own |= _limits(f"{key}_1", first) | _limits(f"{key}_2", second) | _limits(f"{key}_ratio", row[key]["ratio"])
        rows.append(own)
    return pd.DataFrame(rows)
