"""What arms vary besides their batch, in plain words: arms alike in all of that make one series over the batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

Arm = Mapping[str, Any]

# What comes with the batch or follows from a learning-rate rule.
OF_THE_BATCH = {"num_prompts", "train_batch", "in_flight", "lr", "critic_lr", "critic_lr_rule"}
OF_LEARNING = {"lr_rule", "lr_ref"}
IN_FLIGHT = "batch.gen_batch"
WORDS: Mapping[str, Mapping[str, str]] = {
    "execution.mode": {"synchronous": "in turns", "streaming": "streaming"},
    "algorithm.correction": {"none": ""},
    # What most arms leave as it is.
    "optimizer.name": {"adam": ""},
    "optimizer.weight_decay_rule": {"fixed": ""},
    "optimizer.clip_norm_rule": {"fixed": ""},
}
SILENT_AT_0 = ("optimizer.weight_decay", "optimizer.warmup_samples")


def series_names(arms: Sequence[Arm], along: str, without: Collection[str] = ()) -> list[str]:
    """The name of each arm's series; all "" where the arms vary nothing besides what they are compared along.

    arms: as report.json has them. along: the axis of the figures. A learning-rate rule makes a series wherever it
    varies, any other axis only where it tells arms with one value of `along` apart. without: axes that make none.

    >>> arm = {"lr_rule": "sqrt", "train_batch": 64, "group_size": 8, "axes": {"execution.mode": "streaming"}}
    >>> twice = {"execution.mode": "streaming", "batch.gen_batch": 128, "in_flight": 128}
    >>> turns = {"execution.mode": "synchronous", "batch.gen_batch": None, "in_flight": 64}
    >>> arms = [arm | {"axes": turns}, arm | {"axes": twice}]
    >>> series_names(arms, "train_batch")
    ['in turns', 'streaming, 2x in flight']
    >>> series_names(arms[:1], "train_batch")
    ['']
    """
    axes = [_axes(arm) for arm in arms]
    named = [name for name in _names(axes) if name not in {along, *without}]
    named = [name for name in named if _makes_series(arms, axes, along, name)]
    return [", ".join(filter(None, (_words(name, own.get(name)) for name in named))) for own in axes]


def with_series(table: pd.DataFrame, report: Mapping[str, Any]) -> pd.DataFrame:
    """The table of arms with the columns `series`, `speed_series` (what learning alone has no part in) and
    `is_own_series`, whether the series is the reference's.
    """
    along = axis_of_arms(table)
    names = series_names(report["arms"], along)
    own = names[list(table["arm"]).index(report["reference_arm"])]
    speed = series_names(report["arms"], along, without=OF_LEARNING)
    return table.assign(series=names, speed_series=speed, is_own_series=[name == own for name in names])


def axis_of_arms(arms: pd.DataFrame) -> str:
    """What the arms are compared along: the batch, or where all have one batch the first other axis that varies."""
    others = [str(name) for name in arms if str(name).endswith("mini_batch_size")]
    names = [name for name in ("train_batch", "lr", "group_size", *others) if _is_scale(arms[name])]
    return next((name for name in names if arms[name].nunique() > 1), "train_batch")


def _is_scale(values: pd.Series) -> bool:
    """Whether a log axis can hold every value."""
    return pd.api.types.is_numeric_dtype(values) and bool((values > 0).all())


def _axes(arm: Arm) -> dict[str, Any]:
    """What an arm may differ from others in, what is in flight as a multiple of its batch."""
    own = {name: arm[name] for name in ("algorithm", "lr_rule", "group_size") if name in arm} | arm["axes"]
    streams = own.get("execution.mode") == "streaming"
    if IN_FLIGHT in own:
        in_flight = own["in_flight"]
        own[IN_FLIGHT] = in_flight / arm["train_batch"] if streams or in_flight != arm["train_batch"] else None
    return own


def _names(axes: Sequence[dict[str, Any]]) -> list[str]:
    """All axes; mode and what is in flight before their details."""
    found = dict.fromkeys(name for own in axes for name in own if name not in OF_THE_BATCH)
    first = [name for name in ("execution.mode", IN_FLIGHT) if name in found]
    return [*first, *(name for name in found if name not in first)]


def _makes_series(arms: Sequence[Arm], axes: Sequence[dict[str, Any]], along: str, name: str) -> bool:
    if name in OF_LEARNING:
        return len({own.get(name) for own in axes}) > 1
    values: dict[Any, set[Any]] = {}
    for arm, own in zip(arms, axes, strict=True):
        values.setdefault(arm[along] if along in arm else own.get(along), set()).add(own.get(name))
    return max(map(len, values.values()), default=0) > 1


def _words(name: str, value: Any) -> str:
    if value is None or (name in SILENT_AT_0 and value == 0):
        return ""
    if (known := WORDS.get(name, {}).get(value)) is not None:
        return known
    if name == IN_FLIGHT:
        return f"{value:g}x in flight"
    title = name.rpartition(".")[2].replace("_", " ")
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if name == "lr_rule":
        return f"{text} rule"
    if name == "group_size":
        return f"G = {text}"
    if name == "algorithm" or title == "name":
        return text
    return f"{text} {title}" if isinstance(value, str) else f"{title} {text}"
