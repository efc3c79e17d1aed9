"""The published numbers: what follows from what, what does not, and that every verdict can turn."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.errors import InputError
from analysis.facts import noise_scale_of_slope, propagate, quotient
from analysis.paper import check
from analysis.penalty import Interval

SHIPPED = Path(__file__).parents[2] / "results" / "paper"
# Qwen3-8B in bf16 at L = 4096: a layer's KV cache and activations of a sequence over its 192,937,984 weights.
RHO = (2 * 8 * 128 * 4096 * 2 + 344064) / (2 * 192937984)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "paper"))


def change(folder: Path, table: str, old: str, new: str) -> None:
    path = folder / table
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def row(found: dict[str, Any], part: str, name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [row for row in found[part] if row["name"] == name]
    return rows[0]


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    return check(SHIPPED)


@pytest.mark.parametrize(
    ("name", "stated", "low", "high"),
    [
        ("r_T_P1024", "0.71", 8.415 / 11.905, 8.425 / 11.895),
        ("r_T_P2048", "1.23", 14.675 / 11.905, 14.685 / 11.895),
        ("r_T_P256_fixed", "1.42", 1.665 / 1.175, 1.675 / 1.165),
        ("r_N_P256_fixed", "1.67", 2 * 0.825, 2 * 0.835),
        ("gen_gain_ppo", "2.29", 4 / 1.745, 4 / 1.735),
        ("gen_gain_grpo", "1.36", 4 / 2.935, 4 / 2.925),
        ("actor_update_ratio", "2.06", 208.55 / 101.35, 208.65 / 101.25),
        ("time_reduction", "29", 28.5, 29.5),
        ("update_ratio_ideal", "0.50", 0.5, 0.5),
        ("figure_decode_gain", "13.8", 32 / 2.325, 32 / 2.315),
        ("figure_decode_latency", "2.32", (1 + 32 * RHO) / (1 + RHO), (1 + 32 * RHO) / (1 + RHO)),
        ("figure_train_latency", "32", 32, 32),
        ("batch_reference", "1024", 1024, 1024),
    ],
)
def test_what_follows_from_others_agrees_within_their_rounding(
    shipped: dict[str, Any], name: str, stated: str, low: float, high: float
) -> None:
    found = row(shipped, "recomputed", name)
    assert (found["stated"], found["verdict"]) == (stated, "agrees")
    assert (found["low"], found["high"]) == pytest.approx((low, high), rel=1e-5)


def test_what_else_follows(shipped: dict[str, Any]) -> None:
    """Update ratios 0.50 and 0.67 at twice the batch are r_N of 1 and 1.34; 1.18 of 11.90 h are 14.04 h."""
    derived = {row["name"]: row["recomputed"] for row in shipped["derived"]}
    assert derived["r_N_P256_sqrt_low"] == 1
    assert derived["r_N_P256_sqrt_high"] == pytest.approx(1.34)
    assert derived["r_N_P256_fixed_low"] == 1.5
    assert (derived["grpo_aligned_range"], derived["ppo_aligned_range"]) == (16, 8)
    assert derived["hours_P4096"] == pytest.approx(14.042)
    assert derived["gen_gain_grpo_per_doubling"] == pytest.approx(math.sqrt(4 / 2.93))
    assert derived["lr_P1024_sqrt"] == pytest.approx(1e-6 * math.sqrt(8))
    assert derived["noise_scale_ppo_actor"] == pytest.approx(1.35e4, rel=0.01)
    assert derived["figure_rho"] == pytest.approx(1.32 / 29.68)


def test_every_number_is_recomputed_or_says_why_not(shipped: dict[str, Any], folder: Path) -> None:
    reasons = {row["name"]: row["why"] for row in shipped["not_recomputed"]}
    assert "neither its hours nor its r_N and r_q" in reasons["r_T_P4096"]
    assert "P = 2048 or P = 4096" in reasons["r_N_beyond"]
    assert all(reasons.values()) and not set(reasons) & {row["name"] for row in shipped["recomputed"]}
    (folder / "facts.csv").open("a").write("new,1,x,0,summary,5,\n")
    with pytest.raises(InputError, match=r"new needs a row in derivations\.csv or a reason"):
        check(folder)


def test_the_tensions_of_the_table(shipped: dict[str, Any]) -> None:
    """r_N(1024) = 1 needs q = 1/0.71 = 1.41, above generation's 1.36; r_N(2048) = 1.60 needs q = 1.30, below that."""
    first, second, _ = shipped["tensions"]
    assert (first["name"], first["verdict"]) == ("r_N(1024) against q", "in tension")
    assert (first["low"], first["high"]) == pytest.approx((1 / 0.715, 1 / 0.705))
    assert (second["name"], second["verdict"]) == ("r_N(2048) against q", "in tension")
    assert (second["low"], second["high"]) == pytest.approx((1.595 / 1.235, 1.605 / 1.225))
    assert second["limit_interval"] == pytest.approx([1 / 0.715, 1 / 0.705])


def test_a_tension_goes_where_the_numbers_allow_it(folder: Path) -> None:
    """1.75 / 1.23 = 1.42 would do for q(2048): not below 1.41."""
    change(folder, "facts.csv", "r_N_beyond,1.60,", "r_N_beyond,1.75,")
    change(folder, "facts.csv", "gen_gain_grpo,1.36,", "gen_gain_grpo,1.42,")
    found = check(folder)
    assert [row["verdict"] for row in found["tensions"]] == ["fits"] * 3
    assert row(found, "recomputed", "gen_gain_grpo")["verdict"] == "disagrees", "4 / 2.93 is not 1.42"


def test_a_changed_number_turns_its_verdict(folder: Path) -> None:
    change(folder, "facts.csv", "r_T_P256_fixed,1.42,", "r_T_P256_fixed,1.45,")
    found = check(folder)
    assert row(found, "recomputed", "r_T_P256_fixed")["verdict"] == "disagrees"
    assert "14 of 15" in found["summary"][0] and "not so r_T_P256_fixed" in found["summary"][0]


def test_the_decision_rule_makes_the_published_decision(shipped: dict[str, Any]) -> None:
    decision = shipped["decision"]
    verdicts = {arm["arm"]: arm["verdict"] for arm in decision["arms"]}
    slower = {"P2048": "slower", "P4096": "slower", "P256-fixed": "slower"}
    assert verdicts == {"P128": "reference", "P1024": "faster"} | slower
    assert (decision["recommended"], decision["published"], decision["verdict"]) == ("P1024", ["P1024"], "agrees")


def test_another_table_makes_another_decision(folder: Path) -> None:
    """With 0.65 at P = 2048 that is the batch to use, and the published choice is not found any more."""
    change(folder, "facts.csv", "r_T_P2048,1.23,", "r_T_P2048,0.65,")
    decision = check(folder)["decision"]
    assert (decision["recommended"], decision["verdict"]) == ("P2048", "disagrees")
    assert decision["arms"][2]["verdict"] == "faster"


def test_a_verdict_must_hold_for_time_as_stated_and_as_recomputed(folder: Path) -> None:
    """The control's stated 1.42 says slower; were r_q 1.70, r_N / r_q would say 0.98, and nothing is shown."""
    change(folder, "facts.csv", "r_q_P256_fixed,1.17,", "r_q_P256_fixed,1.70,")
    decision = check(folder)["decision"]
    assert decision["arms"][4]["verdict"] == "inconclusive"


def test_corners_bound_a_rule() -> None:
    assert propagate(quotient, [Interval(4, 4, 4), Interval(2, 1, 4)]) == Interval(2, 1, 4)


def test_the_noise_scale_has_the_slope_that_it_was_found_from() -> None:
    """B_n far above the batches: almost -1/2. Beyond -1/2 there is none."""
    assert noise_scale_of_slope(-0.499, 64, 1024) > 1e4
    with pytest.raises(ValueError, match="between -1/2 and 0"):
        noise_scale_of_slope(-0.51, 64, 1024)


def test_the_command_prints_everything_and_ends_with_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", str(SHIPPED)]) == 0
    printed = capsys.readouterr().out
    for words in ("15 of 15", "1.417 to 1.438", "In tension: r_N(1024) against q; r_N(2048)", "chooses P1024"):
        assert words in printed
    change(folder, "facts.csv", "time_reduction,29,", "time_reduction,35,")
    assert main(["paper", str(folder), "--json"]) == 0, "a disagreement is a finding"
    assert "not so time_reduction" in json.loads(capsys.readouterr().out)["summary"][0]


@pytest.mark.parametrize(
    ("table", "old", "new", "sentence"),
    [
        ("facts.csv", "r_T_P1024,0.71,", "r_T_P1024,fast,", "r_T_P1024 has value 'fast'"),
        ("facts.csv", "name,value", "name,number", "has no column value"),
        ("facts.csv", "ppo_actor,-0.471,", "ppo_actor,-0.6,", "noise_scale_ppo_actor: noise_scale_of_slope .* fails"),
        ("derivations.csv", "quotient,hours_P1024", "quotent,hours_P1024", "unknown rule quotent; nearest is quotient"),
        ("derivations.csv", "quotient,hours_P2048", "quotient,hour_P2048", "hour_P2048 .* nearest is hours_P2048"),
        ("derivations.csv", "reduction,r_T_P1024", "reduction,1 2", "time_reduction: reduction of .* fails"),
        ("tensions.csv", "r_q_P1024,at most", "r_q_P1024,below", "relation 'below'; needed is at most or at least"),
        ("table.csv", "1,1,1,reference", "1,1,1,slower", "0 reference arms; needed is one"),
        ("table.csv", "sqrt,,,r_T_P2048", "sqrt,,,", "P2048 has neither r_T nor both r_N and r_q"),
    ],
)
def test_tables_that_make_no_sense_are_one_sentence(
    folder: Path, table: str, old: str, new: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(folder, table, old, new)
    with pytest.raises(InputError, match=sentence):
        check(folder)
    assert main(["paper", str(folder)]) == 2 and capsys.readouterr().err.count("\n") == 1
    assert main(["paper", "nowhere"]) == 2
    assert "nowhere/facts.csv is missing" in capsys.readouterr().err
