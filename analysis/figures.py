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
    axis_of_arms,
    bar_lengths,
    beside,
    clamp,
    colour_scale,
    label_of,
    legend_beside,
    line_style,
    literal,
    number_axis,
    ratio_axis,
    row_objects,
    rule_styles,
    setting_axis,
    slot_width,
)
from analysis.penalty import ALIGNED_HIGH, ALIGNED_LOW
from analysis.scale_figures import critical, distance, targets


def draw_all(report: Report, tables: Tables, folder: Path) -> list[Path]:
    """Write every figure as PNG and SVG into the folder; returns the PNG paths in reading order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in FIGURES.items():
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(WIDTH_IN, 2.7), layout="constrained")
            draw(figure.subplots(), report, tables)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            figure.savefig(folder / f"{name}.png", metadata={"Software": None})
        paths.append(folder / f"{name}.png")
    return paths


def curves(axes: Axes, report: Report, tables: Tables) -> None:
    """J(N) by arm with the range over seeds (where the arms are few); the colour is the batch, dashes are controls."""
    along = axis_of_arms(tables["arms"])
    arms, rows = tables["arms"].sort_values([along, "is_control"]), tables["curves"]
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
    for rule, (marker, _) in rule_styles(arms).items():
        handles.append(
            Line2D([], [], color=GREY, marker=marker, linestyle="", mfc="white", label=f"{literal(rule)} rule")
        )
    # A long legend would cover points.
    beyond: Any = {"loc": "lower center", "bbox_to_anchor": (0.45, 1), "ncols": 2}
    axes.legend(handles=handles, **(beyond if len(handles) > 6 else {"loc": "best"}))
    setting_axis(axes, arms)
    ends = np.array(axes.get_xlim())
    axes.set_xlim(ends[0], ends[1] * np.exp(2 * len(rule_styles(arms)) * slot_width(arms, 2)))
    ratio_axis(axes.yaxis)
    clamp(axes.yaxis, pd.concat([arms[name].fillna(arms[f"{name}_low"]) for name in ("r_N", "r_T")]).dropna())
    axes.set(ylabel="ratio to the reference")


def gradients(axes: Axes, report: Report, tables: Tables) -> None:
    """Gradient norms against B beside the line B^(-1/2) through the reference."""
    along = axis_of_arms(tables["arms"])
    rows = beside(tables["gradients"], tables["arms"], along).sort_values(along)
    axes.set(ylabel="gradient norm (rms)", yscale="log")
    setting_axis(axes, tables["arms"])
    drawn = rows.dropna(subset=["actor"])
    if drawn.empty:
        axes.annotate("no gradient norms recorded", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)
        return
    if along == "train_batch":
        axes.plot(drawn[along], drawn["actor_half_power"], color=GREY, linestyle="--", lw=0.8, label="$B^{-1/2}$")
    for network, colour, marker in (("actor", BLUE, "o"), ("critic", ORANGE, "s")):
        for control, face in ((False, colour), (True, "white")):
            own = rows[rows["is_control"] == control].dropna(subset=[network])
            if len(own):
                label = f"{network}, other lr rule" if control else network
                line = "" if control else "-"
                axes.plot(own[along], own[network], color=colour, marker=marker, mfc=face, ls=line, label=label)
    slope = report["gradient_slope"]["actor"]
    if slope["slope"] is not None:
        low, high = slope["train_batch_range"]
        axes.axvspan(low, high, color=BLUE, alpha=0.08, lw=0)
        axes.set_title(f"actor slope {slope['slope']:.2f} over the aligned range (shaded)", loc="left", fontsize=7)
    number_axis(axes.yaxis)
    axes.legend(loc="best")


def throughput(axes: Axes, report: Report, tables: Tables) -> None:
    """Seconds per sample of generation and training against B; of both together where a log does not divide them."""
    along = axis_of_arms(tables["arms"])
    rows = beside(tables["throughput"], tables["arms"], along)
    rows = rows[rows["used"].astype(bool)].drop_duplicates(along).sort_values(along)
    setting_axis(axes, tables["arms"])
    axes.set(ylabel="milliseconds per sample")
    if rows.empty:
        axes.annotate("no seconds recorded", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)
        return
    phases = [
        (rows["generate_s_per_sample"], BLUE, "o", "generation"),
        (rows["train_s_per_sample"], ORANGE, "s", "training"),
    ]
    if all(seconds.isna().all() for seconds, *_ in phases):
        phases = [(1 / rows["samples_per_s"], GREY, "D", "generation and training")]
    for seconds, colour, marker, label in phases:
        axes.plot(rows[along], 1000 * seconds, color=colour, marker=marker, label=label)
    axes.set_yscale("log")
    number_axis(axes.yaxis)
    axes.legend(loc="best")


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
    for arm in row_objects(drawn.sort_values([along, "is_control"])):
        own = colour(getattr(arm, along))
        face, marker = ("white", rule_styles(arms)[arm.lr_rule][0]) if arm.is_control else (own, "o")
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
    """Estimates with intervals; open markers are controls, arrows are lower bounds.

    The two ratios (place 0 and 1) stand side by side at their batch, those of other learning-rate rules to the right of
    it but short of the next batch, so that none hides another's interval.
    """
    along, styles, step = axis_of_arms(arms), rule_styles(arms), slot_width(arms, 2)
    rules = ["", *styles]
    for arm in row_objects(arms):
        value, low, high = (getattr(arm, key) for key in (name, f"{name}_low", f"{name}_high"))
        slot = 2 * rules.index(arm.lr_rule if arm.is_control else "") + place
        x = getattr(arm, along) * np.exp(step * (slot - 0.5))
        style: dict[str, Any] = {"color": colour, "elinewidth": 0.8, "capsize": 1.5}
        if not np.isnan(value):
            style |= {"marker": styles[arm.lr_rule][0], "mfc": "white"} if arm.is_control else {"marker": "o"}
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
