"""The figures of a report, at the width of a paper's column. They draw the tables and compute nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from analysis.figure_parts import (
    ARROW,
    BLUE,
    GREY,
    MOST_ENTRIES,
    ORANGE,
    STYLE,
    WIDTH_IN,
    Report,
    Tables,
    bar_lengths,
    beside,
    clamp,
    colour_scale,
    label_of,
    legend_above,
    legend_beside,
    line_style,
    literal,
    number_axis,
    ratio_axis,
    row_objects,
    series_handles,
    series_styles,
    setting_axis,
    slot_width,
    with_results,
)
from analysis.penalty import ALIGNED_HIGH, ALIGNED_LOW
from analysis.scale_figures import critical, distance, targets
from analysis.series import axis_of_arms
from analysis.staleness_figure import staleness


def draw_all(report: Report, tables: Tables, folder: Path) -> list[Path]:
    """Write every figure as PNG and SVG into the folder; returns the PNG paths in reading order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, figures = [], dict(FIGURES)
    if len(tables["staleness"]):
        figures["staleness"] = staleness
    for name, draw in figures.items():
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(WIDTH_IN, 2.7), layout="constrained")
            draw(figure.subplots(), report, tables)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            figure.savefig(folder / f"{name}.png", metadata={"Software": None})
        paths.append(folder / f"{name}.png")
    return paths


def curves(axes: Axes, report: Report, tables: Tables) -> None:
    """J(N) by arm with the range over seeds (where the arms are few); the colour is B, dashes are other series."""
    along = axis_of_arms(tables["arms"])
    arms, rows = with_results(tables["arms"]), tables["curves"]
    colour = colour_scale(arms[along])
    handles = []
    for arm in row_objects(arms):
        own = rows[rows["arm"] == arm.arm]
        style: dict[str, Any] = {"color": colour(getattr(arm, along)), "linestyle": line_style(arms, arm)}
        if arm.arm == report["reference_arm"]:
            style["linewidth"] = 2.2
        axes.plot(own["samples_trained"], own["mean"], **style)
        if len(arms) <= MOST_ENTRIES:
            axes.fill_between(own["samples_trained"], own["low"], own["high"], color=style["color"], alpha=0.15, lw=0)
        handles.append(Line2D([], [], label=label_of(arms, arm, report["reference_arm"]), **style))
    target = report["target"]["value"]
    axes.axhline(target, color=GREY, linewidth=0.8, linestyle=":")
    place: Any = {"xycoords": ("axes fraction", "data"), "xytext": (0, 1), "textcoords": "offset points"}
    box = {"fc": "white", "ec": "none", "pad": 0.8, "alpha": 0.8}
    axes.annotate(f"target {target:g}", (0.02, target), va="bottom", fontsize=6.5, color=GREY, bbox=box, **place)
    axes.set(xlabel="samples trained N", ylabel=f"J(N), {literal(report['target']['metric'])}")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n / 1000:g}k" if n else "0"))
    axes.margins(x=0)
    legend_beside(axes, handles, arms, colour, marked=False)


def penalty(axes: Axes, report: Report, tables: Tables) -> None:
    """r_N and r_T against B with 95% intervals; the band is the margin of equivalence of r_N."""
    arms, fit = tables["arms"], tables["fit"]
    axes.axhspan(ALIGNED_LOW, ALIGNED_HIGH, color=BLUE, alpha=0.10, lw=0)
    axes.axhline(1, color=GREY, linewidth=0.8)
    along = axis_of_arms(arms)
    if along == "train_batch":
        axes.plot(fit["train_batch"], fit["r_N"], color=BLUE, linewidth=0.8, linestyle=":")
        axes.plot(fit["train_batch"], fit["predicted"], color=GREY, linewidth=0.7, linestyle="--", zorder=1)
        axes.plot(fit["train_batch"], fit["closed_form"], color=ORANGE, linewidth=0.8, linestyle=":")
    _points(axes, arms, "r_N", BLUE, place=0)
    _points(axes, arms, "r_T", ORANGE, place=1)
    handles = [
        Line2D([], [], color=BLUE, marker="o", linestyle="", label="$r_N$ samples"),
        Line2D([], [], color=ORANGE, marker="o", linestyle="", label="$r_T$ time"),
    ]
    if along == "train_batch" and fit["r_N"].notna().any():
        handles.append(Line2D([], [], color=BLUE, linestyle=":", linewidth=0.8, label=r"fit of $1+B/B_c$"))
    if along == "train_batch" and fit["closed_form"].notna().any():
        label = r"$r_T$ of $(1+B/B_c)(1+B_h/B)$"
        handles.append(Line2D([], [], color=ORANGE, linestyle=":", linewidth=0.8, label=label))
    if along == "train_batch" and fit["predicted"].notna().any():
        label = "$r_N$ from the reference's noise"
        handles.append(Line2D([], [], color=GREY, linestyle="--", linewidth=0.7, label=label))
    handles += series_handles(arms, GREY)
    # A long legend would cover points.
    if len(handles) > 6:
        legend_above(axes, handles)
    else:
        axes.legend(handles=handles, loc="best")
    setting_axis(axes, arms)
    ends = np.array(axes.get_xlim())
    axes.set_xlim(ends[0], ends[1] * np.exp(2 * (len(series_styles(arms)) - 1) * slot_width(arms, 2)))
    ratio_axis(axes.yaxis)
    clamp(axes.yaxis, pd.concat([arms[name].fillna(arms[f"{name}_low"]) for name in ("r_N", "r_T")]).dropna())
    axes.set(ylabel="ratio to the reference")


def gradients(axes: Axes, report: Report, tables: Tables) -> None:
    """Gradient norms against B beside the line B^(-1/2) through the reference."""
    along = axis_of_arms(tables["arms"])
    rows = beside(tables["gradients"], tables["arms"], along, "series").sort_values(along)
    axes.set(ylabel="gradient norm (rms)", yscale="log")
    setting_axis(axes, tables["arms"])
    drawn = rows.dropna(subset=["actor"])
    if drawn.empty:
        axes.annotate("no gradient norms recorded", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)
        return
    if along == "train_batch":
        axes.plot(drawn[along], drawn["actor_half_power"], color=GREY, linestyle="--", lw=0.8, label="$B^{-1/2}$")
    styles, step = series_styles(tables["arms"]), slot_width(tables["arms"], 1)
    for network, colour in (("actor", BLUE), ("critic", ORANGE)):
        for name, mark in styles.items():
            own = rows[rows["series"] == name].dropna(subset=[network])
            if len(own):
                label = ", ".join(filter(None, (network, literal(name))))
                x = own[along] * np.exp(step * mark.place)
                line = "-" if mark.place == 0 else ""
                axes.plot(
                    x, own[network], color=colour, marker=mark.marker, mfc=mark.face(colour), ls=line, label=label
                )
    axes.set_xlim(right=axes.get_xlim()[1] * np.exp(step * (len(styles) - 1)))
    slope = report["gradient_slope"]["actor"]
    if slope["slope"] is not None:
        low, high = slope["train_batch_range"]
        axes.axvspan(low, high, color=BLUE, alpha=0.08, lw=0)
        axes.set_title(f"actor slope {slope['slope']:.2f} over the aligned range (shaded)", loc="left", fontsize=7)
    number_axis(axes.yaxis)
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > 5:
        legend_above(axes, handles)
    else:
        axes.legend(loc="best")


def throughput(axes: Axes, report: Report, tables: Tables) -> None:
    """Seconds per sample of generation and training against B; of both together where a log does not divide them."""
    along = axis_of_arms(tables["arms"])
    rows = beside(tables["throughput"], tables["arms"], along, "series", "speed_series", "is_own_series")
    rows = rows[rows["used"].astype(bool)].sort_values("is_own_series", ascending=False, kind="stable")
    rows = rows.drop_duplicates([along, "speed_series"]).sort_values(along, kind="stable")
    setting_axis(axes, tables["arms"])
    axes.set(ylabel="milliseconds per sample")
    if rows.empty:
        axes.annotate("no seconds recorded", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)
        return
    phases = {"generate_s_per_sample": (BLUE, "o", "generation"), "train_s_per_sample": (ORANGE, "s", "training")}
    if rows[list(phases)].isna().all(axis=None):
        rows = rows.assign(undivided=1 / rows["samples_per_s"])
        phases = {"undivided": (GREY, "D", "generation and training")}
    names, styles = list(dict.fromkeys(rows["speed_series"])), series_styles(tables["arms"])
    handles: list[Line2D] = []
    of_series: list[Line2D] = []
    for phase, (colour, marker, label) in phases.items():
        for name in names:
            own = rows[rows["speed_series"] == name]
            mark = styles[own["series"].iloc[0]]
            style: Any = {"marker": mark.marker, "mfc": mark.face(colour), "ls": mark.line}
            style = {"marker": marker} if len(names) == 1 else style
            axes.plot(own[along], 1000 * own[phase], color=colour, **style)
            if len(names) > 1 and len(of_series) < len(names):
                style["mfc"] = mark.face(GREY)
                of_series.append(Line2D([], [], color=GREY, label=literal(name), **style))
        handles.append(Line2D([], [], color=colour, marker=marker if len(names) == 1 else "", label=label))
    axes.set_yscale("log")
    number_axis(axes.yaxis)
    if of_series:
        legend_above(axes, [*handles, *of_series])
    else:
        axes.legend(handles=handles, loc="best")


def decision(axes: Axes, report: Report, tables: Tables) -> None:
    """The decision plane: below the diagonal r_q > r_N, and the batch pays."""
    arms = tables["arms"]
    drawn = arms.dropna(subset=["r_q"])
    drawn = drawn[drawn["r_N"].notna() | drawn["r_N_low"].notna()]
    axes.set(xlabel="throughput ratio $r_q$", ylabel="sample penalty $r_N$", xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        ratio_axis(axis)
    if drawn.empty:
        axes.annotate("no arm has both $r_q$ and $r_N$", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)
        return
    along = axis_of_arms(arms)
    colour, handles = colour_scale(arms[along]), []
    for arm in row_objects(with_results(drawn)):
        own, mark = colour(getattr(arm, along)), series_styles(arms)[arm.series]
        face, marker = mark.face(own), mark.marker
        style: dict[str, Any] = {"color": own, "elinewidth": 0.8, "mfc": face, "capsize": 1.5}
        style["xerr"] = bar_lengths(arm.r_q, arm.r_q_low, arm.r_q_high)
        height = arm.r_N_low if np.isnan(arm.r_N) else arm.r_N
        if np.isnan(arm.r_N):
            axes.errorbar(arm.r_q, height, yerr=height * (ARROW - 1), lolims=True, marker="_", **style)
        else:
            limits = bar_lengths(height, arm.r_N_low, arm.r_N_high)
            axes.errorbar(arm.r_q, height, yerr=limits, marker=marker, **style)
        label = label_of(arms, arm, report["reference_arm"])
        handles.append(Line2D([], [], label=label, marker=marker, linestyle="", color=own, mfc=face))
    legend_beside(axes, handles, arms, colour, marked=True)
    axes.margins(0.15)
    clamp(axes.xaxis, drawn["r_q"])
    clamp(axes.yaxis, drawn["r_N"].fillna(drawn["r_N_low"]))
    ends = np.array([min(axes.get_xlim()[0], axes.get_ylim()[0]), max(axes.get_xlim()[1], axes.get_ylim()[1])])
    window = axes.get_xlim(), axes.get_ylim()
    axes.plot(ends, ends, color=GREY, linewidth=0.8, zorder=0)
    axes.fill_between(ends, ends, ends[0], color=BLUE, alpha=0.08, lw=0, zorder=0)
    axes.set(xlim=window[0], ylim=window[1])
    axes.annotate("pays: $r_q > r_N$", (0.97, 0.03), xycoords="axes fraction", ha="right", fontsize=7, color=BLUE)
    axes.annotate("costs", (0.03, 0.93), xycoords="axes fraction", fontsize=7, color=GREY)


def _points(axes: Axes, arms: pd.DataFrame, name: str, colour: str, place: int) -> None:
    """Estimates with intervals; open markers are of other series, arrows are lower bounds.

    The two ratios (place 0 and 1) stand side by side at their batch, those of other series to the right of it but short
    of the next batch, so that none hides another's interval.
    """
    along, styles, step = axis_of_arms(arms), series_styles(arms), slot_width(arms, 2)
    for arm in row_objects(arms):
        value, low, high = (getattr(arm, key) for key in (name, f"{name}_low", f"{name}_high"))
        mark = styles[arm.series]
        x = getattr(arm, along) * np.exp(step * (2 * mark.place + place - 0.5))
        style: dict[str, Any] = {"color": colour, "elinewidth": 0.8, "capsize": 1.5}
        if not np.isnan(value):
            style |= {"marker": mark.marker, "mfc": mark.face(colour)}
            axes.errorbar(x, value, yerr=bar_lengths(value, low, high), **style)
        elif not np.isnan(low):
            axes.errorbar(x, low, yerr=low * (ARROW - 1), lolims=True, marker="_", **style)


FIGURES: dict[str, Callable[[Axes, Report, Tables], None]] = {
    "curves": curves,
    "penalty": penalty,
    "decision": decision,
    "targets": targets,
    "distance": distance,
    "critical": critical,
    "gradients": gradients,
    "throughput": throughput,
}
