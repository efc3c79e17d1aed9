"""What the figures share: their style, what tells the arms apart, axes and legends."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, MaxNLocator, NullLocator

from analysis.labels import short_number
from analysis.series import axis_of_arms

Tables = Mapping[str, pd.DataFrame]
Report = Mapping[str, Any]

WIDEST_LABEL = 52
WIDTH_IN = 3.3
# Two colours that the common forms of colour blindness tell apart (Okabe and Ito).
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6b6b6b"
STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 6.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "svg.hashsalt": "batch-invariance",
    "savefig.dpi": 220,
}
# A limit that does not exist is drawn as an arrow this factor long.
ARROW = 1.25
MOST_ENTRIES = 12
LINES: list[Any] = ["--", ":", "-.", (0, (5, 1)), (0, (1, 3)), (0, (6, 2, 1, 2, 1, 2))]


def slot_width(arms: pd.DataFrame, per_series: int) -> float:
    """The distance on the log scale at which so many points per series fit between neighbouring batches."""
    values = np.unique(arms[axis_of_arms(arms)])
    gap = float(np.log(values[1:] / values[:-1]).min()) if len(values) > 1 else 1.0
    return min(0.16 / per_series, 0.75 * gap / (per_series * len(series_styles(arms))))


@dataclass(frozen=True)
class Mark:
    """How a series is drawn: the reference's filled and solid, every other open with a marker and a line of its own."""

    marker: str
    line: Any
    place: int

    def face(self, colour: Any) -> Any:
        return colour if self.place == 0 else "white"


def series_styles(arms: pd.DataFrame) -> dict[str, Mark]:
    """The mark of each series, the reference's first."""
    own = arms.loc[arms["is_own_series"], "series"]
    others = dict.fromkeys(arms.loc[~arms["is_own_series"], "series"])
    names = [own.iloc[0], *others]
    lines = ["-", *itertools.islice(itertools.cycle(LINES), len(others))]
    return {name: Mark(("o" + "s^DvPX<>" * len(names))[place], lines[place], place) for place, name in enumerate(names)}


def series_handles(arms: pd.DataFrame, colour: Any) -> list[Line2D]:
    """A legend entry for the marker of each series that has a trial; none where there is one series only."""
    found, held = series_styles(arms), set(arms.loc[arms["num_seeds"] > 0, "series"])
    return [
        Line2D([], [], color=colour, marker=mark.marker, linestyle="", mfc=mark.face(colour), label=literal(name))
        for name, mark in found.items()
        if len(found) > 1 and name in held
    ]


def legend_above(axes: Axes, handles: Sequence[Artist], title: str | None = None) -> None:
    """A legend over the plot, where it covers no point; the figure grows with it, and long labels take more lines."""
    labels = [str(handle.get_label()) for handle in handles]
    columns = 1 if max(map(len, labels), default=0) > 34 else 2
    labels = [textwrap.fill(label, WIDEST_LABEL) if len(label) > WIDEST_LABEL else label for label in labels]
    rows = -(-sum(1 + label.count("\n") for label in labels) // columns)
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.set_figheight(figure.get_figheight() + 0.13 * max(0, rows - 3))
    place: Any = {"loc": "lower center", "bbox_to_anchor": (0.45, 1), "ncols": columns}
    axes.legend(
        handles=list(handles),
        labels=labels,
        title=title,
        title_fontsize=6.5,
        columnspacing=0.8,
        handletextpad=0.3,
        **place,
    )


def bar_lengths(value: float, low: float, high: float) -> list[list[float]] | None:
    """The two arms of an error bar; None where there is no interval."""
    return [[value - low], [high - value]] if low < high else None


def beside(rows: pd.DataFrame, arms: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Rows with the values that their arm has along axes."""
    of_arm = arms.set_index("arm")
    return rows.assign(**{name: rows["arm"].map(of_arm[name]) for name in names if name not in rows})


def label_of(arms: pd.DataFrame, arm: Any, reference: str) -> str:
    """The batch (or the rate), and what else tells the arm from the others."""
    along = axis_of_arms(arms)
    twins = arms[(arms[along] == getattr(arm, along)) & (arms["series"] == arm.series)]
    label = f"{arm.train_batch:,}" if along == "train_batch" else short_number(getattr(arm, along))
    if len(twins) > 1:
        by_group = twins["group_size"].nunique() > 1
        label += f" = {arm.num_prompts}x{arm.group_size}" if by_group else f" lr {short_number(arm.lr)}"
    if not arm.is_own_series:
        label += f", {literal(arm.series)}"
    return label + (" (ref.)" if arm.arm == reference else "")


def line_style(arms: pd.DataFrame, arm: Any) -> Any:
    """Solid for the reference's series, one of its own for each other; arms of one colour and series differ too."""
    if not arm.is_own_series:
        return series_styles(arms)[arm.series].line
    along = axis_of_arms(arms)
    twins = list(arms.loc[(arms[along] == getattr(arm, along)) & arms["is_own_series"], "arm"])
    return ("-", "-.", ":", "--")[twins.index(arm.arm) % 4]


def with_results(arms: pd.DataFrame) -> pd.DataFrame:
    """The arms that have a trial, in the order of the batch, the reference's series first."""
    places = {name: mark.place for name, mark in series_styles(arms).items()}
    ordered = arms.assign(_place=arms["series"].map(places)).sort_values([axis_of_arms(arms), "_place"], kind="stable")
    return ordered[ordered["num_seeds"] > 0].drop(columns="_place")


def row_objects(table: pd.DataFrame) -> list[Any]:
    return [SimpleNamespace(**{str(name): value for name, value in row.items()}) for row in table.to_dict("records")]


def colour_scale(values: pd.Series) -> Callable[[float], Any]:
    """A sequential scale over the logarithm, dark for the largest; its pale end is left out."""
    scale = mpl.colormaps["viridis_r"]
    norm = LogNorm(values.min(), max(values.max(), values.min() * 2))
    return lambda value: scale(0.12 + 0.88 * float(norm(value)))


def legend_beside(
    axes: Axes, handles: list[Line2D], arms: pd.DataFrame, colour: Callable[[float], Any], marked: bool
) -> None:
    """One entry per arm; where they are too many, one per colour and one per series, by its marker or its dashes."""
    along = axis_of_arms(arms)
    if len(handles) > MOST_ENTRIES:
        values = sorted(arms[along].unique())
        of_values: Any = {"marker": "o", "ls": ""} if marked else {}
        handles = [Line2D([], [], color=colour(value), label=short_number(value), **of_values) for value in values]
        held = set(arms.loc[arms["num_seeds"] > 0, "series"])
        for name, mark in series_styles(arms).items():
            of_series: Any = {"marker": mark.marker, "ls": ""} if marked else {"ls": mark.line}
            if len(series_styles(arms)) > 1 and name in held:
                handles.append(Line2D([], [], color=GREY, mfc=mark.face(GREY), label=literal(name), **of_series))
    title = "batch B" if along == "train_batch" else axis_name(along)
    if max(len(str(handle.get_label())) for handle in handles) > 20:  # beside the plot they would leave it no room
        return legend_above(axes, handles, title)
    place: Any = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "borderaxespad": 0.2}
    axes.legend(handles=handles, title=title, title_fontsize=6.5, handlelength=2.2, handletextpad=0.5, **place)


def axis_name(along: str) -> str:
    named = {"train_batch": "train batch B (responses)", "lr": "learning rate", "group_size": "group size G"}
    return named.get(along, literal(along.rpartition(".")[2].replace("_", " ")))


def literal(text: str) -> str:
    """A name as it is: a dollar sign does not begin a formula."""
    return text.replace("$", r"\$")


def setting_axis(axes: Axes, arms: pd.DataFrame) -> None:
    """A log axis with ticks at the batches (or rates) that were run, as many as fit."""
    along = axis_of_arms(arms)
    found = np.unique(arms[along])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(found[:: -(-len(found) // 8)].tolist()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.set(xlabel=axis_name(along), xlim=(found[0] / 1.3, found[-1] * 1.3))


def ratio_axis(axis: Any) -> None:
    """A log axis of ratios with readable ticks."""
    axis.axes.set_yscale("log") if axis.axis_name == "y" else axis.axes.set_xscale("log")
    axis.set_major_locator(RoundLocator())
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))


class RoundLocator(Locator):
    """Ticks of a log axis at round numbers, as sparse as four of them allow."""

    DECADES = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.5))

    def __call__(self) -> Any:
        """The ticks in view."""
        return self.tick_values(*self.axis.get_view_interval())  # type: ignore[union-attr]

    def tick_values(self, vmin: float, vmax: float) -> Any:
        """The ticks between two positive numbers; even steps where they are close to one another."""
        if not 0 < vmin < vmax < np.inf:
            return np.empty(0)
        powers = 10.0 ** np.arange(np.floor(np.log10(vmin)), np.ceil(np.log10(vmax)) + 1)
        tried = [np.outer(powers, digits).ravel() for digits in self.DECADES]
        for ticks in (*tried, np.asarray(MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(vmin, vmax))):
            found = np.sort(ticks[(ticks >= vmin) & (ticks <= vmax)])
            if len(found) >= 4:
                break
        return found[:: -(-len(found) // 7)]


def clamp(axis: Any, values: pd.Series) -> None:
    """Let an interval that spans orders of magnitude leave the picture rather than press everything else together."""
    if len(values):
        low, high = axis.get_view_interval()
        axis.set_view_interval(max(low, values.min() / 3), min(high, values.max() * 3), ignore=True)


def number_axis(axis: Any) -> None:
    axis.set_major_locator(RoundLocator())
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
