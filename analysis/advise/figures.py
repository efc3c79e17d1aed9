"""The figures of an advice: r_N with its sources, and r_T. They draw advice.json and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.figure_parts import ARROW, BLUE, GREY, ORANGE, STYLE, WIDTH_IN, clamp, ratio_axis
from analysis.labels import short_number

Content = Mapping[str, Any]
GREEN = "#009E73"
# The sources of r_N in the order they stand side by side: key, label, colour, marker.
SOURCES = (
    ("predicted_r_N", "noise scale alone", GREY, "_"),
    ("branch_r_N", "branches", ORANGE, "D"),
    ("measured_r_N", "full runs", BLUE, "o"),
    ("r_N", "all together", "black", "x"),
)


def draw_advice(content: Content, folder: Path) -> list[Path]:
    """Write both figures as PNG and SVG; returns the PNG paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in (("r_N", samples), ("r_T", time)):
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(WIDTH_IN * 1.25, 2.9), layout="constrained")
            draw(figure.subplots(), content)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            figure.savefig(folder / f"{name}.png", metadata={"Software": None})
        paths.append(folder / f"{name}.png")
    return paths


def samples(axes: Axes, content: Content) -> None:
    """r_N of every candidate from each source, side by side at its batch."""
    places = _places(content)
    step = _gap(places) / (1.4 * len(SOURCES))
    handles = []
    for slot, (key, label, colour, marker) in enumerate(SOURCES):
        drawn = [
            _point(axes, places[arm["arm"]], slot - 1.5, step, arm[key], colour, marker) for arm in _others(content)
        ]
        if any(drawn):
            handles.append(Line2D([], [], color=colour, marker=marker, ls="", label=label))
    axes.axhline(1, color=GREY, linewidth=0.8, zorder=0)
    _batch_axis(axes, content, places)
    ratio_axis(axes.yaxis)
    clamp(axes.yaxis, _values(content, [source[0] for source in SOURCES]))
    axes.set(ylabel=r"$r_N$, samples over the reference's")
    _legend(axes, handles)


def time(axes: Axes, content: Content) -> None:
    """r_T of every candidate that was timed; filled where runs of it reached the target, green the one advised."""
    places = _places(content)
    advised = content["advice"]["arm"] if content["advice"] else None
    for arm in content["arms"]:
        colour = GREEN if arm["arm"] == advised else BLUE
        x, value = places[arm["arm"]], arm["r_T"]
        if arm["arm"] == content["reference_arm"]:
            axes.plot(x, 1.0, color=colour, marker="s", zorder=3)
        elif value["estimate"] is not None:
            style: dict[str, Any] = {"color": colour, "elinewidth": 0.9, "capsize": 1.5, "marker": "o"}
            face = colour if arm["reached"] else "white"
            axes.errorbar(x, value["estimate"], yerr=_bars(value), mfc=face, **style)
    axes.axhline(1, color=GREY, linewidth=0.8, zorder=0)
    handles = [
        Line2D([], [], color=BLUE, marker="s", ls="", label="reference"),
        Line2D([], [], color=BLUE, marker="o", ls="", label="with full runs"),
        Line2D([], [], color=BLUE, marker="o", ls="", mfc="white", label="without"),
    ]
    if advised:
        best = next(arm for arm in content["arms"] if arm["arm"] == advised)["r_T"]["estimate"]
        axes.axhspan(
            best / (1 + content["tolerance"]), best * (1 + content["tolerance"]), color=GREEN, alpha=0.12, lw=0
        )
        handles.append(Line2D([], [], color=GREEN, marker="o", ls="", label="advised"))
    _batch_axis(axes, content, places)
    ratio_axis(axes.yaxis)
    clamp(axes.yaxis, _values(content, ["r_T"]))
    axes.set(ylabel=r"$r_T$, time over the reference's")
    _legend(axes, handles)


def _legend(axes: Axes, handles: list[Line2D]) -> None:
    """Above the axes, where it covers no point."""
    above: Any = {"loc": "lower center", "bbox_to_anchor": (0.45, 1), "ncols": 4}
    axes.legend(handles=handles, handletextpad=0.3, columnspacing=1.0, **above)


def _others(content: Content) -> list[Mapping[str, Any]]:
    return [arm for arm in content["arms"] if arm["arm"] != content["reference_arm"]]


def _places(content: Content) -> dict[str, float]:
    """log2 B of each arm; arms that share a batch stand a little apart."""
    found: dict[str, float] = {}
    by_batch: dict[int, list[str]] = {}
    for arm in content["arms"]:
        by_batch.setdefault(arm["train_batch"], []).append(arm["arm"])
    gap = _gap({str(batch): float(np.log2(batch)) for batch in by_batch})
    for batch, arms in by_batch.items():
        for place, name in enumerate(arms):
            found[name] = float(np.log2(batch)) + gap * 0.7 * ((place + 0.5) / len(arms) - 0.5)
    return found


def _gap(places: Mapping[str, float]) -> float:
    values = np.unique(list(places.values()))
    return float(np.diff(values).min()) if len(values) > 1 else 1.0


def _point(axes: Axes, x: float, slot: float, step: float, value: Any, colour: str, marker: str) -> bool:
    """An estimate with its interval, or an arrow where it is a bound; whether there was something to draw."""
    low = value["ci95"][0]
    style: dict[str, Any] = {"color": colour, "elinewidth": 0.9, "capsize": 1.5}
    if value["estimate"] is not None:
        axes.errorbar(x + slot * step, value["estimate"], yerr=_bars(value), marker=marker, **style)
    elif low is not None:
        axes.errorbar(x + slot * step, low, yerr=low * (ARROW - 1), lolims=True, marker="_", **style)
    else:
        return False
    return True


def _bars(value: Mapping[str, Any]) -> list[list[float]] | None:
    low, high = value["ci95"]
    if low is None or high is None:
        return None
    return [[value["estimate"] - low], [high - value["estimate"]]]


def _values(content: Content, keys: list[str]) -> pd.Series:
    """What the y axis must hold."""
    found = [arm[key]["estimate"] or arm[key]["ci95"][0] for arm in content["arms"] for key in keys]
    return pd.Series([value for value in found if value is not None], dtype=float)


def _batch_axis(axes: Axes, content: Content, places: Mapping[str, float]) -> None:
    batches = sorted({arm["train_batch"] for arm in content["arms"]})
    twins = len(places) > len(batches)
    kept = batches[:: -(-len(batches) // 9)]
    axes.xaxis.set_major_locator(FixedLocator([float(np.log2(batch)) for batch in kept]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short_number(round(2**x))))
    gap = _gap(places)
    axes.set_xlim(min(places.values()) - 0.6 * gap, max(places.values()) + 0.6 * gap)
    axes.set(xlabel="train batch B (responses)")
    if twins:
        for arm in content["arms"]:
            label = f"{arm['num_prompts']}x{arm['group_size']}"
            place: Any = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom"}
            axes.annotate(label, (places[arm["arm"]], 0.01), rotation=90, fontsize=5, color=GREY, **place)
