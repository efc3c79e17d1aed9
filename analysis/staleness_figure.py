"""The figure of what the age of the samples costs. It draws the tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.figure_parts import (
    ARROW,
    GREY,
    Report,
    Tables,
    bar_lengths,
    beside,
    clamp,
    colour_scale,
    legend_above,
    ratio_axis,
    row_objects,
    series_handles,
    series_styles,
)


def staleness(axes: Axes, report: Report, tables: Tables) -> None:
    """r_N over the mean age of an arm's tokens; the colour is the batch, the marker the series."""
    arms = tables["arms"]
    rows = beside(tables["staleness"], arms, "series").dropna(subset=["staleness_updates_mean"])
    axes.set(xlabel="mean age of the tokens trained on (updates)", ylabel="sample penalty $r_N$")
    ratio_axis(axes.yaxis)
    axes.axhline(1, color=GREY, linewidth=0.8)
    colour, styles = colour_scale(arms["train_batch"]), series_styles(arms)
    for row in row_objects(rows):
        own, mark = colour(row.train_batch), styles[row.series]
        style: dict[str, Any] = {"color": own, "elinewidth": 0.8, "capsize": 1.5}
        if not np.isnan(row.r_N):
            limits = bar_lengths(row.r_N, row.r_N_low, row.r_N_high)
            style |= {"marker": mark.marker, "mfc": mark.face(own)}
            axes.errorbar(row.staleness_updates_mean, row.r_N, yerr=limits, **style)
        elif not np.isnan(row.r_N_low):
            height = row.r_N_low
            axes.errorbar(
                row.staleness_updates_mean, height, yerr=height * (ARROW - 1), lolims=True, marker="_", **style
            )
    for price in report["staleness"]["price"]:
        own = rows[(rows["train_batch"] == price["train_batch"]) & (rows["correction"] == "none")].dropna(
            subset=["r_N"]
        )
        if len(own):
            ends, slope = np.array(price["ages"]), np.log(price["factor"]["estimate"])
            middle = own["staleness_updates_mean"].mean(), np.log(own["r_N"]).mean()
            heights = np.exp(middle[1] + slope * (ends - middle[0]))
            axes.plot(ends, heights, color=colour(price["train_batch"]), linestyle=":", linewidth=0.8)
    batches = [Line2D([], [], color=colour(b), label=f"B = {b:,}") for b in sorted(set(rows["train_batch"]))]
    legend_above(axes, [*batches, *series_handles(arms, GREY)])
    clamp(axes.yaxis, rows["r_N"].fillna(rows["r_N_low"]).dropna())
