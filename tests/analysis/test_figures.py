"""Figures show the numbers of the tables, on the axes that the reader needs."""

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures
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
    assert labels == ["16", "64 (ref.)", "256", "256 fixed", "1,024", "4,096"]
    styles = dict(zip(labels, (line.get_linestyle() for line in axes.get_lines()), strict=False))
    assert styles["256"] == "-" and styles["256 fixed"] == "--"
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
