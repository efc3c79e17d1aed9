"""Arms that stream: told apart in figures and words, and what the age of their samples costs."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures
from analysis.labels import short_label
from analysis.load import load_sweep
from analysis.results import Results, analyse
from analysis.staleness_figure import staleness
from analysis.write import write_report
from tests.analysis.streaming_sweep import write_streaming
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep

SERIES = ["in turns", "streaming, 1x in flight", "streaming, 2x in flight"]
CORRECTED = "streaming, 2x in flight, truncated correction"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return analyse(load_sweep(write_streaming(tmp_path_factory.mktemp("streaming") / "sweep", cost=1.2)))


def drawn(name: str, results: Results) -> Axes:
    axes: Axes = Figure().subplots()
    (figures.FIGURES | {"staleness": staleness})[name](axes, results.report, results.tables)
    return axes


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def test_what_arms_vary_beside_their_batch_makes_series(results: Results) -> None:
    arms = results.tables["arms"].set_index("arm")
    assert arms["series"].to_dict() == {
        "turns8": SERIES[0], "once8": SERIES[1], "twice8": SERIES[2], "corrected8": CORRECTED,
        "turns32": SERIES[0], "twice32": SERIES[2],
    }  # fmt: skip
    assert arms.loc[arms["is_own_series"]].index.tolist() == ["turns8", "turns32"]
    assert arms["in_flight"].to_dict()["twice32"] == 512  # 2 * 32 * 8
    labels = {arm["arm"]: short_label(results.report, arm) for arm in results.report["arms"]}
    assert labels["twice8"] == "B = 64 (streaming, 2x in flight)" and labels["turns32"] == "B = 256 (in turns)"


def test_figures_over_the_batch_tell_the_series_apart(results: Results) -> None:
    for name in ("penalty", "distance", "gradients", "throughput", "staleness"):
        shown = [label.removeprefix("actor, ") for label in legend(drawn(name, results))]
        assert [label for label in shown if label in [*SERIES, CORRECTED]] == [*SERIES, CORRECTED], name
    # One point for each of six arms and both ratios, each marker at a place of its own.
    marks = [line for line in drawn("penalty", results).get_lines() if line.get_marker() in "os^D"]
    assert len({float(line.get_xdata()[0]) for line in marks}) == len(marks) == 12
    assert {line.get_marker() for line in marks} == {"o", "s", "^", "D"}
    # Two phases of four series.
    assert len(drawn("throughput", results).get_lines()) == 8
    assert legend(drawn("curves", results))[:2] == ["64 (ref.)", "64, streaming, 1x in flight"]


def test_the_age_of_an_arm_is_the_mean_over_tokens_and_the_largest(results: Results) -> None:
    rows = {row["arm"]: row for row in results.report["staleness"]["arms"]}
    twice = rows["twice8"]
    # Updates of 64 tokens of age 0 and of 128 tokens of age 3 (largest 6) take turns: 128 * 3 / 192 = 2.
    assert twice["staleness_updates_mean"] == pytest.approx(2.0) and twice["staleness_updates_max"] == 6
    assert twice["staleness_samples_mean"] == pytest.approx(128.0) and twice["staleness_samples_max"] == 384
    # Every other update dropped as many as it trained on.
    assert twice["samples_dropped_frac"] == pytest.approx(1 / 3)
    assert (twice["in_flight_ratio"], twice["correction"], rows["corrected8"]["correction"]) == (2, "none", "truncated")
    assert rows["turns32"]["staleness_updates_max"] == 0 and rows["turns32"]["in_flight_ratio"] == 1
    assert rows["once8"]["r_q"]["estimate"] == pytest.approx(1.5, rel=0.05)
    assert list(rows) == ["turns8", "once8", "twice8", "corrected8", "turns32", "twice32"]
    assert results.tables["staleness"].loc[2, "r_N"] == pytest.approx(1.44, rel=0.05)


def test_a_price_is_told_with_its_interval_and_what_that_rests_on(results: Results) -> None:
    small, large = results.report["staleness"]["price"]
    assert (small["train_batch"], small["num_arms"], small["ages"]) == (64, 3, [0.0, 2.0])  # the corrected one is out
    assert small["factor"]["estimate"] == pytest.approx(1.2, rel=0.03) and small["price"] is True
    assert (large["train_batch"], large["num_arms"], large["ages"]) == (256, 2, [0.0, 1.5])
    [sentence] = [text for text in results.report["headline"] if "update of age" in text]
    assert sentence.startswith("At B = 64 one update of age multiplies the samples to the target by 1.")
    assert ": age costs samples (3 arms, 0.0 to 2.0 updates old); at B = 256 " in sentence
    assert "over seeds, given that log r_N is a straight line in the mean age" in sentence


def test_no_price_and_no_interval_are_told_as_such(tmp_path: Path) -> None:
    free = analyse(load_sweep(write_streaming(tmp_path / "free", cost=1.0, seed_sd=0.1))).report
    low, high = free["staleness"]["price"][0]["factor"]["ci95"]
    assert low < 1 < high and free["staleness"]["price"][0]["price"] is False
    assert any(": no price is shown (3 arms" in text for text in free["headline"])
    once = analyse(load_sweep(write_streaming(tmp_path / "once", cost=1.2, num_seeds=1))).report
    assert once["staleness"]["price"][0]["price"] is None
    assert any(", measured once (3 arms" in text for text in once["headline"])


def test_the_report_has_the_table_and_the_figure_only_where_arms_stream(tmp_path: Path) -> None:
    folder = write_streaming(tmp_path / "sweep", cost=1.1, num_seeds=2)
    write_report(load_sweep(folder))
    page = (folder / "report" / "report.html").read_text()
    assert "<br>streaming, 2x in flight</small></td>" in page
    assert page.count("The price of age") == 3  # heading, figure's title and its alternative text
    assert (folder / "report" / "figures" / "staleness.png").is_file()
    plain = write_sweep(tmp_path / "plain", SweepTruth([ArmTruth(8), ArmTruth(32)], num_seeds=2))
    report, _ = write_report(load_sweep(plain))
    assert report["staleness"] == {"arms": [], "price": []}
    assert "The price of age" not in (plain / "report" / "report.html").read_text()
    assert not (plain / "report" / "figures" / "staleness.png").exists()
