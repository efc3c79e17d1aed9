"""Figures show the numbers of the tables, on the axes that the reader needs."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figure_parts, figures
from analysis.load import load_sweep
from analysis.results import Results, analyse
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return analyse(load_sweep(write_sweep(tmp_path_factory.mktemp("figures") / "sweep")))


def drawn(name: str, results: Results) -> Axes:
    axes: Axes = Figure().subplots()
    figures.FIGURES[name](axes, results.report, results.tables)
    return axes


def test_curves_are_solid_for_the_rule_and_dashed_for_controls(results: Results) -> None:
    axes = drawn("curves", results)
    legend = axes.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["16", "64 (ref.)", "256", "256, fixed rule", "1,024", "4,096"]
    styles = dict(zip(labels, (line.get_linestyle() for line in axes.get_lines()), strict=False))
    assert styles["256"] == "-" and styles["256, fixed rule"] == "--"
    target = axes.get_lines()[-1]
    assert set(target.get_ydata()) == {0.7}


def test_ratios_and_batches_have_log_axes(results: Results) -> None:
    assert (drawn("penalty", results).get_xscale(), drawn("penalty", results).get_yscale()) == ("log", "log")
    assert (drawn("decision", results).get_xscale(), drawn("decision", results).get_yscale()) == ("log", "log")
    assert drawn("gradients", results).get_xscale() == "log"


def test_the_guide_of_the_gradients_passes_through_the_reference(results: Results) -> None:
    """B = 64 is the reference: at B = 16 the line is twice its norm, at 256 half of it."""
    guide = drawn("gradients", results).get_lines()[0]
    values = dict(zip(guide.get_xdata(), guide.get_ydata(), strict=True))
    norm = next(arm for arm in results.report["arms"] if arm["arm"] == "P8-G8-sqrt")["grad_norm"]["actor"]
    assert values[64] == pytest.approx(norm)
    assert values[16] == pytest.approx(2 * norm) and values[256] == pytest.approx(norm / 2)


def test_a_sweep_of_rates_at_one_batch_is_drawn_over_the_rate(tmp_path: Path) -> None:
    """All arms have B = 64; what differs is lr, 3e-4 by the square root, 6e-4 set by hand."""
    truth = SweepTruth([ArmTruth(8), ArmTruth(8, 1.2, group_size=8, lr_rule="fixed")], num_seeds=2)
    sweep = write_sweep(tmp_path / "s", truth)
    plan = (
        (sweep / "plan.json")
        .read_text()
        .replace('"lr": 0.0003, "lr_rule": "fixed"', '"lr": 0.0006, "lr_rule": "fixed"')
    )
    (sweep / "plan.json").write_text(plan)
    axes = drawn("penalty", analyse(load_sweep(sweep)))
    assert axes.get_xlabel() == "learning rate"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["3e-4", "6e-4"]


def test_matched_pairs_are_drawn_over_the_group_size(tmp_path: Path) -> None:
    truth = SweepTruth([ArmTruth(8), ArmTruth(16, group_size=4), ArmTruth(4, group_size=16)], num_seeds=2)
    axes = drawn("gradients", analyse(load_sweep(write_sweep(tmp_path / "s", truth))))
    assert axes.get_xlabel() == "group size G"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["4", "8", "16"]


def test_the_prediction_is_a_light_line_through_the_reference(tmp_path: Path) -> None:
    truth = SweepTruth([ArmTruth(8), ArmTruth(32, 1.3)], num_seeds=2, with_noise_metrics=True, noise_scale=300)
    axes = drawn("penalty", analyse(load_sweep(write_sweep(tmp_path / "s", truth))))
    legend = axes.get_legend()
    assert legend is not None
    assert "$r_N$ from the reference's noise" in [text.get_text() for text in legend.get_texts()]
    line = next(line for line in axes.get_lines() if line.get_linestyle() == "--")
    assert line.get_ydata()[0] == pytest.approx(1)


def test_points_stand_nearer_to_their_own_batch_than_to_the_next(tmp_path: Path) -> None:
    """Five rules at B = 64 and 128: the rightmost point of 64 is left of 128."""
    rules = ["sqrt", "fixed", "linear", "surge", "adam_sde"]
    arms = [ArmTruth(n, 1.0, lr_rule=rule) for n in (8, 16) for rule in rules]
    axes = drawn("penalty", analyse(load_sweep(write_sweep(tmp_path / "s", SweepTruth(arms, num_seeds=2)))))
    marks = [line for line in axes.get_lines() if line.get_marker() in "os^DvPX" and len(line.get_xdata()) == 1]
    places = sorted({float(line.get_xdata()[0]) for line in marks})
    assert len(places) == 20
    assert places[0] > 60 and places[9] < 64 * 2**0.85 and places[10] > 120
    assert axes.get_xlim()[1] > places[-1]


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    """A dollar sign is no formula: $x_{ would not even parse."""
    sweep = write_sweep(tmp_path / "s", SweepTruth([ArmTruth(8), ArmTruth(32, lr_rule="$x_{")], num_seeds=2))
    for path in [sweep / "plan.json", *sweep.glob("trials/*/metrics.jsonl")]:
        path.write_text(path.read_text().replace("eval/score", "eval/$y_{"))
    assert len(figures.draw_all(*_parts(analyse(load_sweep(sweep))), tmp_path / "figures")) == len(figures.FIGURES)


def _parts(results: Results) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    return results.report, results.tables


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.7, 6.0, [0.75, 1, 1.5, 2, 3, 5]),
        (0.74, 1.25, [0.8, 0.9, 1.0, 1.1, 1.2]),
        (3.0, 3000.0, [3, 10, 30, 100, 300, 1000, 3000]),
        (-1.0, 1.0, []),
    ],
)
def test_a_log_axis_has_at_least_four_round_ticks(low: float, high: float, ticks: list[float]) -> None:
    assert figure_parts.RoundLocator().tick_values(low, high).tolist() == pytest.approx(ticks)


def test_r_N_is_drawn_over_the_target_and_lines_end_where_seeds_miss_it(results: Results) -> None:
    """The reference reaches 0.85; P128, N* = 1.75 * 9,000, reaches 0.8 at 1.61 * 15,750 = 25,400 in some seeds only."""
    axes = drawn("targets", results)
    assert axes.get_yscale() == "log"
    legend = axes.get_legend()
    assert legend is not None
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) > 2]
    ends = {}
    for text, line in zip(legend.get_texts(), lines, strict=True):
        known = np.asarray(line.get_xdata())[~np.isnan(np.asarray(line.get_ydata(), dtype=float))]
        ends[text.get_text()] = known.max() if len(known) else None
    assert ends["64 (ref.)"] >= 0.8 > ends["1,024"]


def test_distances_and_critical_batches_have_their_intervals(results: Results) -> None:
    distance = drawn("distance", results)
    bars = [bar for bar in distance.containers if len(bar.get_children()) > 1]
    assert len(bars) == 5 and distance.get_ylim()[0] == 0
    critical = drawn("critical", results)
    labels = [label.get_text() for label in critical.get_yticklabels()]
    assert labels[:3] == ["largest aligned", "$r_N$ = 4/3", "fitted $B_c$"] and "half speed, $B_h$" in labels
    bracket = critical.get_lines()[0]
    assert list(bracket.get_xdata()) == [256, 1024]


def test_without_other_targets_or_critical_batches_the_figures_say_so(tmp_path: Path) -> None:
    """One flat arm: nothing is learned, no level is reached, no batch is critical."""
    truth = SweepTruth([ArmTruth(8, 1e6)], num_seeds=2, timing_rounds=0)
    results = analyse(load_sweep(write_sweep(tmp_path / "s", truth)))
    assert [text.get_text() for text in drawn("targets", results).texts] == ["one target only"]
    assert [text.get_text() for text in drawn("critical", results).texts] == ["no critical batch is known"]
    for name in figures.FIGURES:
        drawn(name, results)


def test_a_figure_is_as_wide_as_a_column(results: Results, tmp_path: Path) -> None:
    paths = figures.draw_all(*_parts(results), tmp_path)
    assert all(path.with_suffix(".svg").is_file() for path in paths)
    for path in paths:
        width = struct.unpack(">I", path.read_bytes()[16:20])[0]
        assert width == pytest.approx(3.3 * 220, abs=1)
