"""What the figures share: their style, what tells the arms apart, axes and legends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, MaxNLocator, NullLocator

from analysis.labels import short_number

Tables = Mapping[str, pd.DataFrame]
Report = Mapping[str, Any]

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


def slot_width(arms: pd.DataFrame, per_rule: int) -> float:
    """The distance on the log scale at which so many points per rule fit between neighbouring batches."""
    values = np.unique(arms[axis_of_arms(arms)])
    gap = float(np.log(values[1:] / values[:-1]).min()) if len(values) > 1 else 1.0
    return min(0.16 / per_rule, 0.75 * gap / (per_rule * (1 + len(rule_styles(arms)))))


def rule_styles(arms: pd.DataFrame) -> dict[str, tuple[str, Any]]:
    """(marker, line) of each learning-rate rule but the reference's."""
    rules = dict.fromkeys(arms.loc[arms["is_control"], "lr_rule"])
    lines = ["--", ":", "-.", (0, (5, 1)), (0, (1, 3)), (0, (6, 2, 1, 2, 1, 2))]
    return {rule: ("s^DvPX"[place % 6], lines[place % 6]) for place, rule in enumerate(rules)}


def bar_lengths(value: float, low: float, high: float) -> list[list[float]] | None:
    """The two arms of an error bar; None where there is no interval."""
    return [[value - low], [high - value]] if low < high else None


def axis_of_arms(arms: pd.DataFrame) -> str:
    """What the arms are compared along: the batch, or where all have one batch the first other axis that varies."""
    others = [str(name) for name in arms if str(name).endswith("mini_batch_size")]
    names = [name for name in ("train_batch", "lr", "group_size", *others) if _is_scale(arms[name])]
    return next((name for name in names if arms[name].nunique() > 1), "train_batch")


def _is_scale(values: pd.Series) -> bool:
    """Whether a log axis can hold every value."""
    return pd.api.types.is_numeric_dtype(values) and bool((values > 0).all())


def beside(rows: pd.DataFrame, arms: pd.DataFrame, along: str) -> pd.DataFrame:
    """Rows with the value that their arm has along an axis."""
    return rows if along in rows else rows.assign(**{along: rows["arm"].map(arms.set_index("arm")[along])})


def label_of(arms: pd.DataFrame, arm: Any, reference: str) -> str:
    """The batch (or the rate), and what else tells the arm from the others."""
    along = axis_of_arms(arms)
    twins = arms[(arms[along] == getattr(arm, along)) & (arms["lr_rule"] == arm.lr_rule)]
    label = f"{arm.train_batch:,}" if along == "train_batch" else short_number(getattr(arm, along))
    if len(twins) > 1:
        by_group = twins["group_size"].nunique() > 1
        label += f" = {arm.num_prompts}x{arm.group_size}" if by_group else f" lr {short_number(arm.lr)}"
    if arm.is_control:
        label += f" {literal(arm.lr_rule)}"
    return label + (" (ref.)" if arm.arm == reference else "")


def line_style(arms: pd.DataFrame, arm: Any) -> Any:
    """Solid for the reference's rule, one of its own for each other; arms of one colour and rule differ too."""
    along = axis_of_arms(arms)
    if arm.is_control:
        return rule_styles(arms)[arm.lr_rule][1]
    twins = list(arms.loc[(arms[along] == getattr(arm, along)) & ~arms["is_control"], "arm"])
    return ("-", "-.", ":", "--")[twins.index(arm.arm) % 4]


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
    """One entry per arm; where they are too many, one per colour and one per rule, by its marker or its dashes."""
    along = axis_of_arms(arms)
    if len(handles) > MOST_ENTRIES:
        values = sorted(arms[along].unique())
        of_values: Any = {"marker": "o", "ls": ""} if marked else {}
        handles = [Line2D([], [], color=colour(value), label=short_number(value), **of_values) for value in values]
        for rule, (marker, line) in rule_styles(arms).items():
            of_rule: Any = {"marker": marker, "ls": ""} if marked else {"ls": line}
            handles.append(Line2D([], [], color=GREY, mfc="white", label=literal(rule), **of_rule))
    title = "batch B" if along == "train_batch" else axis_name(along)
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
