"""The figure of the bound: what a larger batch costs a layer, and what it can gain in decoding until memory is full."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.figure_parts import BLUE, GREY, ORANGE, STYLE, WIDTH_IN
from analysis.labels import digits


def draw(report: Mapping[str, Any], table: pd.DataFrame, curve: pd.DataFrame, folder: Path) -> None:
    """Write roofline.png and roofline.svg into the folder."""
    with mpl.rc_context(STYLE):
        both = len(table) > 1
        figure = Figure(figsize=(WIDTH_IN, 4.4 if both else 2.4), layout="constrained")
        panels = figure.subplots(2 if both else 1, 1, squeeze=False)[:, 0]
        panels[0].set_title(f"{report['model']['name']}, {report['where']}, L = {report['context']:,}", loc="left")
        if both:
            latency(panels[0], table)
        throughput(
            panels[-1],
            (curve["batch"].to_numpy(), curve["decode_tokens_per_s"].to_numpy()),
            plateau=report["whole_model"]["plateau_tokens_per_s"],
            half_batch=report["whole_model"]["half_plateau_batch"],
            memory_limit=report["memory"]["batch_limit"],
        )
        figure.savefig(folder / "roofline.svg", metadata={"Date": None})
        figure.savefig(folder / "roofline.png", metadata={"Software": None})


def latency(axes: Axes, table: pd.DataFrame) -> None:
    """t(B) over that of the smallest batch, of a layer: training and decode."""
    marks = table.iloc[[0, -1]]
    for name, colour, label in (("train", ORANGE, "training"), ("decode", BLUE, "decode")):
        axes.plot(table["batch"], table[f"{name}_layer_ratio"], color=colour, label=label)
        axes.plot(marks["batch"], marks[f"{name}_layer_ratio"], "o", color=colour)
        last = marks.iloc[-1]
        place: Any = {"xytext": (-3, 4), "textcoords": "offset points", "ha": "right", "fontsize": 7, "color": colour}
        axes.annotate(f"{digits(last[f'{name}_layer_ratio'])}x", (last["batch"], last[f"{name}_layer_ratio"]), **place)
    axes.set(ylabel="latency of a layer,\nratio to the smallest batch")
    log_axes(axes)
    axes.set_xlabel("batch B (sequences)")
    axes.legend(loc="upper left")


def throughput(
    axes: Axes,
    bound: tuple[np.ndarray, np.ndarray],
    *,
    plateau: float | None = None,
    half_batch: float | None = None,
    memory_limit: int | None = None,
    measured: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """Decode tokens per second against sequences in flight: the bound, and measured rates beside it.

    bound, measured: (batch, tokens per second), arrays of one length. plateau, half_batch, memory_limit: as
    analysis.bound gives them; what is None is not drawn.
    """
    batch_B, rate_B = bound
    axes.plot(batch_B, rate_B, color=BLUE, label="bound")
    log_axes(axes)
    axes.set_xlim(batch_B[0], batch_B[-1])
    if plateau is not None:
        axes.axhline(plateau, color=GREY, lw=0.8, ls=":", label="plateau")
    if half_batch is not None and plateau is not None and batch_B[0] <= half_batch <= batch_B[-1]:
        axes.plot(
            [half_batch], [plateau / 2], "o", color=BLUE, mfc="white", label=f"half of it, B = {digits(half_batch)}"
        )
    if memory_limit is not None and memory_limit < batch_B[-1]:
        axes.axvspan(max(memory_limit, batch_B[0]), batch_B[-1], color=GREY, alpha=0.15, lw=0)
        label = f"beyond memory, B > {memory_limit:,}" if memory_limit else "not one sequence fits in memory"
        axes.plot([], [], color=GREY, alpha=0.3, lw=5, label=label)
    if measured is not None:
        axes.plot(*measured, "s-", color=ORANGE, label="measured")
    axes.set(xlabel="sequences in flight", ylabel="decode tokens/s")
    axes.legend(loc="lower right")


def log_axes(axes: Axes) -> None:
    """Powers of two below, round numbers on the left."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, 1024)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, 1000)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _tick(value: float, thousand: int) -> str:
    """`512`, `2k` for 2,048 or 2,000 by what a thousand is, `1M`."""
    for power, unit in ((2, "M"), (1, "k")):
        if value >= thousand**power:
            return f"{value / thousand**power:g}{unit}"
    return f"{value:g}"
