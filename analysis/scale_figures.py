"""Figures of the targets, of the distance between curves, and of the critical batches. They draw the tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from analysis.figure_parts import (
    BLUE,
    GREY,
    MOST_ENTRIES,
    ORANGE,
    Report,
    RoundLocator,
    Tables,
    bar_lengths,
    clamp,
    colour_scale,
    label_of,
    legend_above,
    legend_beside,
    line_style,
    literal,
    ratio_axis,
    row_objects,
    series_handles,
    series_styles,
    setting_axis,
    slot_width,
    with_results,
)
from analysis.penalty import ALIGNED_HIGH, ALIGNED_LOW
from analysis.series import axis_of_arms

GREEN = "#009E73"
GROUPS = {"training": (BLUE, "o"), "generation": (ORANGE, "s"), "time": (GREEN, "D")}


def targets(axes: Axes, report: Report, tables: Tables) -> None:
    """r_N over the target, a line for each arm; bands are 95% intervals where the arms are few."""
    along, rows = axis_of_arms(tables["arms"]), tables["targets"]
    arms = with_results(tables["arms"])
    colour, handles = colour_scale(arms[along]), []
    axes.set(xlabel=f"target in {literal(report['target']['metric'])}", ylabel="sample penalty $r_N$")
    ratio_axis(axes.yaxis)
    if rows["target"].nunique() < 2:
        axes.annotate("one target only", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)
        return
    axes.axhspan(ALIGNED_LOW, ALIGNED_HIGH, color=BLUE, alpha=0.10, lw=0)
    axes.axvline(report["target"]["value"], color=GREY, linewidth=0.8, linestyle=":")
    for arm in row_objects(arms):
        own = rows[rows["arm"] == arm.arm]
        style: dict[str, Any] = {"color": colour(getattr(arm, along)), "linestyle": line_style(arms, arm)}
        axes.plot(own["target"], own["r_N"], marker=".", markersize=3, **style)
        if len(arms) <= MOST_ENTRIES:
            limits = own.dropna(subset=["r_N"])
            axes.fill_between(
                limits["target"], limits["r_N_low"], limits["r_N_high"], color=style["color"], alpha=0.13, lw=0
            )
        handles.append(Line2D([], [], label=label_of(arms, arm, report["reference_arm"]), **style))
    clamp(axes.yaxis, rows["r_N"].dropna())
    legend_beside(axes, handles, arms, colour, marked=False)


def distance(axes: Axes, report: Report, tables: Tables) -> None:
    """The largest distance of each arm's curve from the reference's, with its simultaneous interval."""
    arms = tables["arms"].dropna(subset=["largest_distance"])
    styles, step = series_styles(tables["arms"]), slot_width(tables["arms"], 1)
    for arm in row_objects(arms):
        mark = styles[arm.series]
        limits = bar_lengths(arm.largest_distance, arm.largest_distance_low, arm.largest_distance_high)
        style: dict[str, Any] = {"color": BLUE, "elinewidth": 0.8, "capsize": 1.5}
        style |= {"marker": mark.marker, "mfc": mark.face(BLUE)}
        x = getattr(arm, axis_of_arms(tables["arms"])) * np.exp(step * mark.place)
        axes.errorbar(x, arm.largest_distance, yerr=limits, **style)
    setting_axis(axes, tables["arms"])
    axes.set_xlim(right=axes.get_xlim()[1] * np.exp(step * (len(styles) - 1)))
    axes.set(ylabel=r"largest $|\Delta J|$ to the reference")
    top = max(arms["largest_distance"].max() * 1.5, 1e-3) if len(arms) else 1.0
    axes.set_ylim(0, min(axes.get_ylim()[1], top))
    if handles := series_handles(tables["arms"], BLUE):
        legend_above(axes, handles)


def critical(axes: Axes, report: Report, tables: Tables) -> None:
    """Every way to a critical batch on one axis of responses, with its interval; a bar alone is a bracket."""
    rows = tables["critical"].dropna(subset=["estimate", "low", "high"], how="all").reset_index(drop=True)
    axes.set_xscale("log")
    axes.set(xlabel="batch (responses)")
    if rows.empty:
        axes.annotate("no critical batch is known", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)
        axes.set_yticks([])
        return
    places = -np.arange(len(rows))
    for place, row in zip(places, row_objects(rows), strict=True):
        colour, marker = GROUPS[row.group]
        limits = row.low, row.high
        if not np.isnan(limits).any():
            axes.plot(limits, [place, place], color=colour, linewidth=1.4, solid_capstyle="butt")
        if not np.isnan(row.estimate):
            axes.plot(
                row.estimate, place, color=colour, marker=marker, linestyle="", markersize=3.5, mfc="white", mew=1
            )
        elif np.isnan(row.high):
            axes.annotate(
                "", (row.low * 1.6, place), (row.low, place), arrowprops={"arrowstyle": "->", "color": colour}
            )
        elif np.isnan(row.low):
            axes.annotate(
                "", (row.high / 1.6, place), (row.high, place), arrowprops={"arrowstyle": "->", "color": colour}
            )
    known = rows[["estimate", "low", "high"]].to_numpy()
    known = known[known > 0]
    axes.set_xlim(known.min() / 1.8, known.max() * 1.8)
    axes.xaxis.set_major_locator(RoundLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda batch, _: f"{batch:,.0f}"))
    axes.xaxis.minorticks_off()
    axes.set_yticks(places, [_symbols(name) for name in rows["name"]])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(min(places[-1], -7) - 0.6, 0.6)
    axes.grid(axis="x", color=GREY, alpha=0.2, linewidth=0.5)
    for label, group in zip(axes.get_yticklabels(), rows["group"], strict=True):
        label.set_color(GROUPS[group][0])


def _symbols(text: str) -> str:
    for symbol in ("r_N", "B_c", "B_h"):
        text = text.replace(symbol, f"${symbol}$")
    return text
