"""The figure of a profile: generation against what is in flight, training against the batch, each beside its bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_parts import BLUE, GREY, ORANGE, STYLE, WIDTH_IN
from analysis.labels import digits
from analysis.profile_bound import Bound
from analysis.profile_file import Curve, read_profile
from analysis.profile_summary import Beside, with_bounds
from analysis.roofline_figure import log_axes, throughput

GREEN = "#009E73"
MARKERS = "s^DvPX"


def draw(curves: Beside, folder: Path) -> list[Path]:
    """Write profile.png and profile.svg into the folder; returns their paths.

    curves: by phase, the reference's first, each with its bound.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {phase: own for phase, own in curves.items() if own}
    paths = [folder / "profile.png", folder / "profile.svg"]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 2.4 * len(drawn)), layout="constrained")
        for axes, (phase, own) in zip(figure.subplots(len(drawn), 1, squeeze=False)[:, 0], drawn.items(), strict=True):
            panel(axes, phase, own)
        figure.savefig(paths[0], metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def draw_profile(sweep: Path, folder: Path) -> Path:
    """Draw the profile of a sweep into a folder; returns the PNG."""
    profile = read_profile(sweep)
    assert profile is not None  # asked for where there is one
    return draw(with_bounds(profile), folder)[0]


def panel(axes: Axes, phase: str, curves: list[tuple[Curve, Bound | None]]) -> None:
    """Response tokens per second of each curve; the first with its bound, its knee and its memory limit."""
    first, bound = curves[0]
    rates = np.array([point.tokens_per_s.estimate for point in first.points])
    limit = first.memory_limit.responses if first.memory_limit else None
    if bound is not None:
        throughput(
            axes,
            (bound.batch_M, bound.tokens_per_s_M),
            plateau=bound.plateau,
            half_batch=bound.half_batch,
            memory_limit=limit,
            measured=(first.batch_A, rates),
        )
    else:
        axes.plot(first.batch_A, rates, "s-", color=ORANGE, label="measured")
        log_axes(axes)
    for number, (curve, _) in enumerate(curves):
        _limits(axes, curve)
        if number:
            others = np.array([point.tokens_per_s.estimate for point in curve.points])
            label = ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in curve.family.items())
            marker: Any = MARKERS[number % len(MARKERS)]
            axes.plot(curve.batch_A, others, marker=marker, ls="--", color=GREEN, mfc="white", label=label)
    _knee(axes, first)
    named = ("responses in flight", "generation") if phase == "generate" else ("train batch B (responses)", "training")
    axes.set(xlabel=named[0], ylabel="response tokens/s")
    axes.set_title(named[1], loc="left")
    axes.set_xlim(first.batch_A[0] / 1.15, max(first.batch_A[-1], 2 * first.batch_A[0]) * 1.15)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _limits(axes: Axes, curve: Curve) -> None:
    for batch, point in zip(curve.batch_A, curve.points, strict=True):
        low, high = point.tokens_per_s.ci95
        if low is not None and high is not None:
            axes.plot([batch, batch], [low, high], color=ORANGE, linewidth=0.8)


def _knee(axes: Axes, curve: Curve) -> None:
    """A line at the batch with 90% of the plateau, its interval shaded."""
    if curve.knee is None or not curve.knee.reached or curve.knee.estimate is None:
        return
    share = f"{curve.knee.plateau_frac:.0%}"
    axes.axvline(curve.knee.estimate, color=BLUE, lw=0.8, ls="--", label=f"{share} from {digits(curve.knee.estimate)}")
    low, high = curve.knee.ci95
    if low is not None and high is not None:
        axes.axvspan(low, high, color=GREY, alpha=0.12, lw=0)
