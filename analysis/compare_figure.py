"""The figure of a comparison: r_N over the batch in both sweeps, with their fits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figure_parts import (
    ARROW,
    BLUE,
    GREY,
    ORANGE,
    STYLE,
    WIDTH_IN,
    Tables,
    axis_of_arms,
    bar_lengths,
    clamp,
    literal,
    ratio_axis,
    row_objects,
    setting_axis,
)
from analysis.penalty import ALIGNED_HIGH, ALIGNED_LOW

COLOURS, MARKERS = (BLUE, ORANGE), ("o", "s")


def draw_comparison(both: Sequence[Tables], names: Sequence[str], folder: Path) -> list[Path]:
    """Write r_N.png and r_N.svg into the folder; both: the tables of the two sweeps."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "r_N.png", folder / "r_N.svg"]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 2.7), layout="constrained")
        penalties(figure.subplots(), both, names)
        figure.savefig(paths[0], metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def penalties(axes: Axes, both: Sequence[Tables], names: Sequence[str]) -> None:
    """r_N against B of both; the colour is the sweep, open markers are controls, arrows are lower bounds."""
    axes.axhspan(ALIGNED_LOW, ALIGNED_HIGH, color=GREY, alpha=0.12, lw=0)
    axes.axhline(1, color=GREY, linewidth=0.8)
    arms = pd.concat([tables["arms"] for tables in both])
    along, handles = axis_of_arms(arms), []
    for place, (tables, name) in enumerate(zip(both, names, strict=True)):
        colour, marker = COLOURS[place], MARKERS[place]
        if along == "train_batch":
            axes.plot(tables["fit"]["train_batch"], tables["fit"]["r_N"], color=colour, linewidth=0.8, linestyle=":")
        for arm in row_objects(tables["arms"]):
            _point(axes, arm, getattr(arm, along) * (0.96 if place == 0 else 1.04), colour, marker)
        handles.append(
            Line2D(
                [],
                [],
                color=colour,
                marker=marker,
                linestyle=":",
                label=literal(name if len(name) <= 30 else f"{name[:27]}..."),
            )
        )
    handles.append(Line2D([], [], color=GREY, marker="o", mfc="white", linestyle="", label="another lr rule"))
    axes.legend(handles=handles, loc="upper left")
    setting_axis(axes, arms)
    ratio_axis(axes.yaxis)
    clamp(axes.yaxis, arms["r_N"].fillna(arms["r_N_low"]).dropna())
    axes.set(ylabel="sample penalty $r_N$")


def _point(axes: Axes, arm: Any, x: float, colour: str, marker: str) -> None:
    style: dict[str, Any] = {"color": colour, "elinewidth": 0.8, "capsize": 1.5}
    style["mfc"] = "white" if arm.is_control else colour
    if not np.isnan(arm.r_N):
        lengths = bar_lengths(arm.r_N, arm.r_N_low, arm.r_N_high)
        axes.errorbar(x, arm.r_N, yerr=lengths, marker=marker, **style)
    elif not np.isnan(arm.r_N_low):
        axes.errorbar(x, arm.r_N_low, yerr=arm.r_N_low * (ARROW - 1), lolims=True, marker="_", **style)
