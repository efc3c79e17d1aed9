"""r_N and the recommendation at other targets, as data, as a table and in words."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.load import load_sweep
from analysis.results import Results, analyse
from analysis.target_words import target_headline, target_rows, target_sentence
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep

ARMS = [ArmTruth(8, 1.0, 1000), ArmTruth(16, 1.1, 3000)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    sweep = write_sweep(
        tmp_path_factory.mktemp("targets") / "s", SweepTruth(ARMS, num_seeds=3, seed_sd=0.03, eval_sd=0.001)
    )
    return analyse(load_sweep(sweep))


def test_every_round_level_of_the_reference_is_a_target(results: Results) -> None:
    """From 0.28 to 0.9 by 0.05; true r_N is 1.1 and true r_T 0.37 at every target, for the curves are one but for speed."""
    levels = results.report["targets"]["levels"]
    assert [level["target"] for level in levels] == pytest.approx([0.3 + 0.05 * k for k in range(len(levels))])
    assert levels[-1]["target"] >= 0.8
    table = results.tables["targets"]
    own = table[(table["arm"] == "P16-G8-sqrt") & (table["target"] > 0.4)]
    assert ((own["r_N_low"] < 1.1) & (own["r_N_high"] > 1.1)).mean() >= 0.8
    at_own = table[(table["arm"] == "P16-G8-sqrt") & (table["target"] == 0.7)].iloc[0]
    main = next(arm for arm in results.report["arms"] if arm["arm"] == "P16-G8-sqrt")
    assert at_own["r_N"] == main["r_N"]["estimate"] and at_own["verdict"] == main["verdict"]


def test_a_recommendation_that_holds_everywhere(results: Results) -> None:
    assert results.report["targets"]["recommendation"] == "same"
    sentence = target_sentence(results.report)
    assert sentence is not None and sentence.startswith("The recommendation is the same at every target from 0.3 to 0.")
    assert target_headline(results.report) == []
    assert {row["arm"] for row in target_rows(results.report)} == {"B = 128"}


def levelled(agreement: str, *recommended: str) -> dict[str, Any]:
    """A report whose targets 0.5, 0.6, ... recommend these arms."""
    arms = [
        {"arm": name, "train_batch": batch, "lr_rule": "sqrt", "axes": {}} for name, batch in (("a", 64), ("b", 128))
    ]
    levels = [
        {"target": 0.5 + 0.1 * k, "recommendation": {"arm": name, "r_T": 0.9, "ties": []}, "arms": []}
        for k, name in enumerate(recommended)
    ]
    return {"reference_arm": "a", "arms": arms, "targets": {"levels": levels, "recommendation": agreement}}


def test_a_recommendation_that_changes_is_in_the_headline() -> None:
    changing = levelled("changes", "a", "a", "b", "a")
    expected = (
        "The recommendation changes with the target: B = 64 (reference) from 0.5 to 0.6 and at 0.8; B = 128 at 0.7."
    )
    assert target_headline(changing) == [expected]
    tied = levelled("not told apart", "a", "b")
    assert target_headline(tied) == []
    assert target_sentence(tied) == (
        "At every target from 0.5 to 0.6 the recommendation is the same or one not told apart from it: "
        "B = 64 (reference) at 0.5; B = 128 at 0.6."
    )


def test_arms_whose_curves_cross_change_the_recommendation_with_the_target(tmp_path: Path) -> None:
    """The larger batch is three times as fast early and never gets past 0.62: before it pays, past it the reference."""
    truth = SweepTruth([ArmTruth(8, 1.0, 1000), ArmTruth(32, 1.0, 3000)], num_seeds=4, seed_sd=0.02, eval_sd=0.001)
    sweep = write_sweep(tmp_path / "s", truth)
    for trial in (sweep / "trials").glob("P32*"):
        path = trial / "metrics.jsonl"
        lines = path.read_text().splitlines()
        path.write_text("".join(capped(line) + "\n" for line in lines))
    found = analyse(load_sweep(sweep))
    assert found.report["targets"]["recommendation"] == "changes"
    sentence = target_headline(found.report)[0]
    assert sentence in found.report["headline"]
    assert "B = 256 from 0.3" in sentence and sentence.endswith("B = 64 (reference) from 0.65 to 0.85.")


def capped(line: str) -> str:
    record = json.loads(line)
    if record["kind"] == "eval":
        record["metrics"]["eval/score"] = min(record["metrics"]["eval/score"], 0.62 + 1e-9 * record["samples_trained"])
    return json.dumps(record)


def test_without_learning_or_a_reference_there_are_no_targets(tmp_path: Path) -> None:
    slow = SweepTruth([ArmTruth(8, 1e6)], num_seeds=2, eval_sd=0.02)
    found = analyse(load_sweep(write_sweep(tmp_path / "s", slow))).report["targets"]
    assert found["recommendation"] is None and "flag" in found
