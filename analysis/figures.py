"""The figures of a report, at the width of a paper's column. They draw the tables and compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, MaxNLocator, NullLocator

from analysis.labels import short_number
from analysis.penalty import ALIGNED_HIGH, ALIGNED_LOW

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
    along = _along(tables["arms"])
    arms, rows = tables["arms"].sort_values([along, "is_control"]), tables["curves"]
    colour = _colours(arms[along])
    handles = []
    for arm in _rows(arms):
        own = rows[rows["arm"] == arm.arm]
        style: dict[str, Any] = {"color": colour(getattr(arm, along)), "linestyle": _line_style(arms, arm)}
        if arm.arm == report["reference_arm"]:
            style["linewidth"] = 2.2
        axes.plot(own["samples_trained"], own["mean"], **style)
        if len(arms) <= MOST_ENTRIES:
            axes.fill_between(own["samples_trained"], own["low"], own["high"], color=style["color"], alpha=0.15, lw=0)
        handles.append(Line2D([], [], label=_label(arms, arm, report["reference_arm"]), **style))
    target = report["target"]["value"]
    axes.axhline(target, color=GREY, linewidth=0.8, linestyle=":")
    place: Any = {"xycoords": ("axes fraction", "data"), "xytext": (0, 1), "textcoords": "offset points"}
    axes.annotate(f"target {target:g}", (0.02, target), va="bottom", fontsize=6.5, color=GREY, **place)
    axes.set(xlabel="samples trained N", ylabel=f"J(N), {_literal(report['target']['metric'])}")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n / 1000:g}k" if n else "0"))
    axes.margins(x=0)
    _legend_beside(axes, handles, arms, colour, marked=False)


def penalty(axes: Axes, report: Report, tables: Tables) -> None:
    """r_N and r_T against B with 95% intervals; the band is the margin of equivalence of r_N."""
    arms, fit = tables["arms"], tables["fit"]
    axes.axhspan(ALIGNED_LOW, ALIGNED_HIGH, color=BLUE, alpha=0.10, lw=0)
    axes.axhline(1, color=GREY, linewidth=0.8)
    along = _along(arms)
    if along == "train_batch":
        axes.plot(fit["train_batch"], fit["r_N"], color=BLUE, linewidth=0.8, linestyle=":")
        axes.plot(fit["train_batch"], fit["predicted"], color=GREY, linewidth=0.7, linestyle="--", zorder=1)
    _points(axes, arms, "r_N", BLUE, place=0)
    _points(axes, arms, "r_T", ORANGE, place=1)
    handles = [
        Line2D([], [], color=BLUE, marker="o", linestyle="", label="$r_N$ samples"),
        Line2D([], [], color=ORANGE, marker="o", linestyle="", label="$r_T$ time"),
    ]
    if along == "train_batch" and fit["r_N"].notna().any():
        handles.append(Line2D([], [], color=BLUE, linestyle=":", linewidth=0.8, label=r"fit of $1+B/B_c$"))
    if along == "train_batch" and fit["predicted"].notna().any():
        label = "$r_N$ from the reference's noise"
        handles.append(Line2D([], [], color=GREY, linestyle="--", linewidth=0.7, label=label))
    for rule, (marker, _) in _rule_styles(arms).items():
        handles.append(
            Line2D([], [], color=GREY, marker=marker, linestyle="", mfc="white", label=f"{_literal(rule)} rule")
        )
    # A long legend would cover points.
    beyond: Any = {"loc": "lower center", "bbox_to_anchor": (0.45, 1), "ncols": 2}
    axes.legend(handles=handles, **(beyond if len(handles) > 6 else {"loc": "best"}))
    _setting_axis(axes, arms)
    ends = np.array(axes.get_xlim())
    axes.set_xlim(ends[0], ends[1] * np.exp(2 * len(_rule_styles(arms)) * _slot(arms)))
    _ratio_axis(axes.yaxis)
    _clamp(axes.yaxis, pd.concat([arms[name].fillna(arms[f"{name}_low"]) for name in ("r_N", "r_T")]).dropna())
    axes.set(ylabel="ratio to the reference")


def gradients(axes: Axes, report: Report, tables: Tables) -> None:
    """Gradient norms against B beside the line B^(-1/2) through the reference."""
    along = _along(tables["arms"])
    rows = _beside(tables["gradients"], tables["arms"], along).sort_values(along)
    axes.set(ylabel="gradient norm (rms)", yscale="log")
    _setting_axis(axes, tables["arms"])
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
    _number_axis(axes.yaxis)
    axes.legend(loc="best")


def throughput(axes: Axes, report: Report, tables: Tables) -> None:
    """Seconds per sample of generation and training against B; of both together where a log does not divide them."""
    along = _along(tables["arms"])
    rows = _beside(tables["throughput"], tables["arms"], along)
    rows = rows[rows["used"].astype(bool)].drop_duplicates(along).sort_values(along)
    _setting_axis(axes, tables["arms"])
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
    _number_axis(axes.yaxis)
    axes.legend(loc="best")


def decision(axes: Axes, report: Report, tables: Tables) -> None:
    """The decision plane: below the diagonal r_q > r_N, and the batch pays."""
    arms = tables["arms"]
    drawn = arms.dropna(subset=["r_q"])
    drawn = drawn[drawn["r_N"].notna() | drawn["r_N_low"].notna()]
    axes.set(xlabel="throughput ratio $r_q$", ylabel="sample penalty $r_N$", xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        _ratio_axis(axis)
    if drawn.empty:
        axes.annotate("no arm has both $r_q$ and $r_N$", (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)
        return
    along = _along(arms)
    colour, handles = _colours(arms[along]), []
    for arm in _rows(drawn.sort_values([along, "is_control"])):
        own = colour(getattr(arm, along))
        face, marker = ("white", _rule_styles(arms)[arm.lr_rule][0]) if arm.is_control else (own, "o")
        style: dict[str, Any] = {"color": own, "elinewidth": 0.8, "mfc": face, "capsize": 1.5}
        style["xerr"] = _lengths(arm.r_q, arm.r_q_low, arm.r_q_high)
        height = arm.r_N_low if np.isnan(arm.r_N) else arm.r_N
        if np.isnan(arm.r_N):
            axes.errorbar(arm.r_q, height, yerr=height * (ARROW - 1), lolims=True, marker="_", **style)
        else:
            limits = _lengths(height, arm.r_N_low, arm.r_N_high)
            axes.errorbar(arm.r_q, height, yerr=limits, marker=marker, **style)
        label = _label(arms, arm, report["reference_arm"])
        handles.append(Line2D([], [], label=label, marker=marker, linestyle="", color=own, mfc=face))
    _legend_beside(axes, handles, arms, colour, marked=True)
    axes.margins(0.15)
    _clamp(axes.xaxis, drawn["r_q"])
    _clamp(axes.yaxis, drawn["r_N"].fillna(drawn["r_N_low"]))
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
    along, styles, step = _along(arms), _rule_styles(arms), _slot(arms)
    rules = ["", *styles]
    for arm in _rows(arms):
        value, low, high = (getattr(arm, key) for key in (name, f"{name}_low", f"{name}_high"))
        slot = 2 * rules.index(arm.lr_rule if arm.is_control else "") + place
        x = getattr(arm, along) * np.exp(step * (slot - 0.5))
        style: dict[str, Any] = {"color": colour, "elinewidth": 0.8, "capsize": 1.5}
        if not np.isnan(value):
            style |= {"marker": styles[arm.lr_rule][0], "mfc": "white"} if arm.is_control else {"marker": "o"}
            axes.errorbar(x, value, yerr=_lengths(value, low, high), **style)
        elif not np.isnan(low):
            axes.errorbar(x, low, yerr=low * (ARROW - 1), lolims=True, marker="_", **style)


def _slot(arms: pd.DataFrame) -> float:
    """The distance on the log scale at which two ratios per rule fit between neighbouring batches."""
    values = np.unique(arms[_along(arms)])
    gap = float(np.log(values[1:] / values[:-1]).min()) if len(values) > 1 else 1.0
    return min(0.08, 0.75 * gap / (2 + 2 * len(_rule_styles(arms))))


def _rule_styles(arms: pd.DataFrame) -> dict[str, tuple[str, Any]]:
    """(marker, line) of each learning-rate rule but the reference's."""
    rules = dict.fromkeys(arms.loc[arms["is_control"], "lr_rule"])
    lines = ["--", ":", "-.", (0, (5, 1)), (0, (1, 3)), (0, (6, 2, 1, 2, 1, 2))]
    return {rule: ("s^DvPX"[place % 6], lines[place % 6]) for place, rule in enumerate(rules)}


def _lengths(value: float, low: float, high: float) -> list[list[float]] | None:
    """The two arms of an error bar; None where there is no interval."""
    return [[value - low], [high - value]] if low < high else None


def _along(arms: pd.DataFrame) -> str:
    """What the arms are compared along: the batch, or where all have one batch the first other axis that varies."""
    others = [str(name) for name in arms if str(name).endswith("mini_batch_size")]
    names = [name for name in ("train_batch", "lr", "group_size", *others) if _is_scale(arms[name])]
    return next((name for name in names if arms[name].nunique() > 1), "train_batch")


def _is_scale(values: pd.Series) -> bool:
    """Whether a log axis can hold every value."""
    return pd.api.types.is_numeric_dtype(values) and bool((values > 0).all())


def _beside(rows: pd.DataFrame, arms: pd.DataFrame, along: str) -> pd.DataFrame:
    """Rows with the value that their arm has along an axis."""
    return rows if along in rows else rows.assign(**{along: rows["arm"].map(arms.set_index("arm")[along])})


def _label(arms: pd.DataFrame, arm: Any, reference: str) -> str:
    """The batch (or the rate), and what else tells the arm from the others."""
    along = _along(arms)
    twins = arms[(arms[along] == getattr(arm, along)) & (arms["lr_rule"] == arm.lr_rule)]
    label = f"{arm.train_batch:,}" if along == "train_batch" else short_number(getattr(arm, along))
    if len(twins) > 1:
        by_group = twins["group_size"].nunique() > 1
        label += f" = {arm.num_prompts}x{arm.group_size}" if by_group else f" lr {short_number(arm.lr)}"
    if arm.is_control:
        label += f" {_literal(arm.lr_rule)}"
    return label + (" (ref.)" if arm.arm == reference else "")


def _line_style(arms: pd.DataFrame, arm: Any) -> Any:
    """Solid for the reference's rule, one of its own for each other; arms of one colour and rule differ too."""
    along = _along(arms)
    if arm.is_control:
        return _rule_styles(arms)[arm.lr_rule][1]
    twins = list(arms.loc[(arms[along] == getattr(arm, along)) & ~arms["is_control"], "arm"])
    return ("-", "-.", ":", "--")[twins.index(arm.arm) % 4]


def _rows(table: pd.DataFrame) -> list[Any]:
    return [SimpleNamespace(**{str(name): value for name, value in row.items()}) for row in table.to_dict("records")]


def _colours(values: pd.Series) -> Callable[[float], Any]:
    """A sequential scale over the logarithm, dark for the largest; its pale end is left out."""
    scale = mpl.colormaps["viridis_r"]
    norm = LogNorm(values.min(), max(values.max(), values.min() * 2))
    return lambda value: scale(0.12 + 0.88 * float(norm(value)))


def _legend_beside(
    axes: Axes, handles: list[Line2D], arms: pd.DataFrame, colour: Callable[[float], Any], marked: bool
) -> None:
    """One entry per arm; where they are too many, one per colour and one per rule, by its marker or its dashes."""
    along = _along(arms)
    if len(handles) > MOST_ENTRIES:
        values = sorted(arms[along].unique())
        of_values: Any = {"marker": "o", "ls": ""} if marked else {}
        handles = [Line2D([], [], color=colour(value), label=short_number(value), **of_values) for value in values]
        for rule, (marker, line) in _rule_styles(arms).items():
            of_rule: Any = {"marker": marker, "ls": ""} if marked else {"ls": line}
            handles.append(Line2D([], [], color=GREY, mfc="white", label=_literal(rule), **of_rule))
    title = "batch B" if along == "train_batch" else _axis_name(along)
    place: Any = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "borderaxespad": 0.2}
    axes.legend(handles=handles, title=title, title_fontsize=6.5, handlelength=2.2, handletextpad=0.5, **place)


def _axis_name(along: str) -> str:
    named = {"train_batch": "train batch B (responses)", "lr": "learning rate", "group_size": "group size G"}
    return named.get(along, _literal(along.rpartition(".")[2].replace("_", " ")))


def _literal(text: str) -> str:
    """A name as it is: a dollar sign does not begin a formula."""
    return text.replace("$", r"\$")


def _setting_axis(axes: Axes, arms: pd.DataFrame) -> None:
    """A log axis with ticks at the batches (or rates) that were run, as many as fit."""
    along = _along(arms)
    found = np.unique(arms[along])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(found[:: -(-len(found) // 8)].tolist()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.set(xlabel=_axis_name(along), xlim=(found[0] / 1.3, found[-1] * 1.3))


def _ratio_axis(axis: Any) -> None:
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


def _clamp(axis: Any, values: pd.Series) -> None:
    """Let an interval that spans orders of magnitude leave the picture rather than press everything else together."""
    if len(values):
        low, high = axis.get_view_interval()
        axis.set_view_interval(max(low, values.min() / 3), min(high, values.max() * 3), ignore=True)


def _number_axis(axis: Any) -> None:
    axis.set_major_locator(RoundLocator())
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


FIGURES: dict[str, Callable[[Axes, Report, Tables], None]] = {
    "curves": curves,
    "penalty": penalty,
    "decision": decision,
    "gradients": gradients,
    "throughput": throughput,
}
