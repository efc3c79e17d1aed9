"""The table of critical batches and the regime in words."""

from pathlib import Path
from typing import Any

import pytest

from analysis.critical_words import closed_form_sentence, critical_rows, regime_sentences
from analysis.load import load_sweep
from analysis.results import analyse
from tests.analysis.synthetic import STUDY, ArmTruth, SweepTruth, write_sweep


def report_of(folder: Path, truth: SweepTruth = STUDY) -> dict[str, Any]:
    return analyse(load_sweep(write_sweep(folder / "s", truth))).report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return report_of(tmp_path_factory.mktemp("words"))


def test_every_way_to_a_critical_batch_is_a_row_of_its_own(report: dict[str, Any]) -> None:
    rows = critical_rows(report)
    assert len({row["question"] for row in rows}) == len({row["name"] for row in rows}) == len(rows) == 11
    assert [row["group"] for row in rows] == ["training"] * 6 + ["generation"] * 2 + ["time"] * 3
    known = {row["name"]: row for row in rows}
    assert known["largest aligned"]["value"] == "256" and "first not aligned: 1,024" in known["largest aligned"]["how"]
    for name in ("r_N = 4/3", "fitted B_c", "20% more samples", "half speed, B_h", "least time, fitted"):
        assert known[name]["low"] < known[name]["estimate"] < known[name]["high"]
    assert known["noise, in updates"]["how"] == "tr(S) / |G|^2: not recorded"


def test_the_intervals_of_one_fit_follow_from_one_another(report: dict[str, Any]) -> None:
    """B* = B_c / 5 + 1.2 * 64, also at the limits; the optimum is sqrt(B_c B_h)."""
    train, model = report["critical_batch"]["train"], report["time_model"]
    for critical, twenty in zip(train["fit"]["ci95"], train["twenty_percent_ci95"], strict=True):
        assert twenty == pytest.approx(critical / 5 + 76.8)
    product = train["fit"]["critical_batch"] * model["half_speed_batch"]["estimate"]
    assert model["optimum"]["estimate"] ** 2 == pytest.approx(product)
    assert model["best_arm"] == report["recommendation"]["arm"] == "P32-G8-sqrt"
    sentence = closed_form_sentence(report)
    assert sentence is not None and "of the batches that were run 256 is fastest" in sentence


def test_regimes_in_words(tmp_path: Path) -> None:
    """Full at once and never a loss; a loss long before generation is full; neither."""
    full = SweepTruth([ArmTruth(8, 1.0, 2000), ArmTruth(16, 1.0, 2010), ArmTruth(32, 1.0, 2000)], clock_sd=0.002)
    assert regime_sentences(report_of(tmp_path / "a", full)) == [
        "Generation is filled first: at most 64 responses in flight have 90% of its largest rate, while r_N stays below "
        "4/3 up to B = 256; between the two a larger batch costs little."
    ]
    lost = SweepTruth([ArmTruth(8, 1.0, 500), ArmTruth(16, 1.4, 1000), ArmTruth(32, 2.0, 2000)], seed_sd=0.02)
    said = regime_sentences(report_of(tmp_path / "b", lost))[0]
    assert said.startswith("Samples are lost first: r_N reaches 4/3 at B = 1")
    assert "while generation still gains at the largest batch" in said
    neither = SweepTruth([ArmTruth(8, 1.0, 500), ArmTruth(16, 1.0, 1000), ArmTruth(32, 1.0, 2000)], seed_sd=0.02)
    assert regime_sentences(report_of(tmp_path / "c", neither)) == [
        "No knee is reached: r_N stays below 4/3 up to B = 256, and generation still gains: larger batches are worth a try."
    ]


def test_one_batch_has_no_regime(tmp_path: Path) -> None:
    found = report_of(tmp_path, SweepTruth([ArmTruth(32), ArmTruth(16, group_size=16)], num_seeds=2))
    assert found["regime"] == "unknown" and regime_sentences(found) == [] and closed_form_sentence(found) is None
    assert found["critical_batch"]["train"]["four_thirds_batch"]["flag"] == "fewer than two batches"
