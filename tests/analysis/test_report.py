"""report.json as the contract has it, the files beside it, the words, and the command line."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape

from analysis.__main__ import main
from tests.analysis.synthetic import STUDY, ArmTruth, SweepTruth, trial_records, write_sweep, write_trial

SMALL = SweepTruth([ArmTruth(8, 1.0, 1000), ArmTruth(32, 1.1, 2400)], num_seeds=3)
ARM_KEYS = {
    "arm", "algorithm", "num_prompts", "group_size", "train_batch", "lr_rule", "lr", "num_seeds", "num_censored",
    "samples_to_target", "update_ratio", "r_N", "throughput", "r_q", "r_T", "verdict", "aligned", "grad_norm",
}  # fmt: skip


def report_of(sweep: Path, *arguments: str) -> dict[str, Any]:
    assert main(["report", str(sweep), *arguments]) == 0
    report: dict[str, Any] = json.loads((sweep / "report/report.json").read_text(), parse_constant=_refuse)
    return report


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} in report.json")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("report") / "study")


@pytest.fixture(scope="module")
def report(sweep: Path) -> dict[str, Any]:
    return report_of(sweep)


def arm_of(report: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(arm for arm in report["arms"] if arm["arm"] == name)
    return found


def test_the_contract_of_report_json(report: dict[str, Any]) -> None:
    top = {"sweep", "target", "reference_arm", "arms", "gradient_slope", "noise_scale", "critical_batch"}
    assert top | {"recommendation", "excluded"} <= set(report)
    assert report["target"] == {"metric": "eval/score", "value": 0.7, "rule": "stated in the plan"}
    assert len(report["arms"]) == 6
    for arm in report["arms"]:
        assert set(arm) >= ARM_KEYS
        assert set(arm["samples_to_target"]) >= {"estimate", "ci95", "per_seed"}
        assert {"seed", "below", "above", "estimate", "censored"} <= set(arm["samples_to_target"]["per_seed"][0])
        assert set(arm["update_ratio"]) >= {"estimate", "interval"}
        assert {"samples_per_s", "generate_s_per_sample", "train_s_per_sample"} <= set(arm["throughput"])
        assert set(arm["grad_norm"]) == {"actor", "critic"}
    assert {"slope", "ci95", "train_batch_range"} <= set(report["gradient_slope"]["actor"])
    assert set(report["critical_batch"]) == {"train", "generation"}
    assert {"arm", "r_T", "reason"} <= set(report["recommendation"])
    assert report["prediction"] == {
        "arms": [],
        "rms_log_error": {"optimal_step": None, "adam": None},
        "flag": "not recorded",
    }
    assert report["groups"]["unit"] is None and report["cadence"] == []


def test_numbers_hang_together(report: dict[str, Any]) -> None:
    for arm in report["arms"]:
        if arm["r_T"]["estimate"] is not None:
            assert arm["r_T"]["estimate"] == pytest.approx(arm["r_N"]["estimate"] / arm["r_q"])
            ratio = arm["r_N"]["estimate"] * 64 / arm["train_batch"]
            assert arm["update_ratio"]["estimate"] == pytest.approx(ratio)
        for seed in arm["samples_to_target"]["per_seed"]:
            assert seed["censored"] or seed["below"] <= seed["estimate"] <= seed["above"]


def test_a_censored_arm_is_null_with_a_bound(report: dict[str, Any]) -> None:
    arm = arm_of(report, "P512-G8-sqrt")
    assert (arm["num_censored"], arm["verdict"]) == (5, "target_not_reached")
    assert arm["r_N"]["estimate"] is None and arm["r_N"]["bound"] == "lower"
    assert arm["r_N"]["ci95"][0] > 2 and arm["r_N"]["ci95"][1] is None
    assert arm["r_N"]["flag"] == "5 of 5 seeds do not reach the target: a bound"


def test_the_first_sentence_answers_the_question(report: dict[str, Any]) -> None:
    first, aligned, control, regime, censored = report["headline"]
    assert regime.startswith("Samples are lost first: r_N reaches 4/3 at B = ")
    assert first.startswith("A batch of 256 responses (P32-G8-sqrt) reaches 0.7 in eval/score first: in 0.")
    assert "95% interval" in first and "a batch of 64 responses (P8-G8-sqrt)" in first
    assert "aligned from B = 16 to B = 256" in aligned
    assert control.startswith("With the fixed rule instead: B = 256 needs 1.")
    assert "times its time (no gain is shown), where the sqrt rule needs 1." in control
    assert "all 5 of P512-G8-sqrt" in censored


def test_both_clocks_stand_beside_one_another(report: dict[str, Any]) -> None:
    throughput = arm_of(report, "P32-G8-sqrt")["throughput"]
    assert throughput["source"] == "timing"
    assert throughput["beside"]["records"]["samples_per_s"] == pytest.approx(2400, rel=0.02)


def test_the_files_of_a_report(sweep: Path, report: dict[str, Any]) -> None:
    folder = sweep / "report"
    names = [
        "arms",
        "cadence",
        "critical",
        "curves",
        "distances",
        "excluded",
        "fit",
        "gradients",
        "groups",
        "growth",
        "prediction",
    ]
    names += ["reach", "roles", "seeds", "staleness", "targets", "throughput"]
    assert sorted(path.stem for path in (folder / "tables").iterdir()) == names
    assert len(pd.read_csv(folder / "tables/seeds.csv")) == 30
    figures = ["critical", "curves", "decision", "distance", "gradients", "penalty", "targets", "throughput"]
    assert sorted(path.stem for path in (folder / "figures").glob("*.png")) == figures
    assert sorted(path.stem for path in (folder / "figures").glob("*.svg")) == figures


def test_the_page_stands_alone_and_begins_with_the_answer(sweep: Path, report: dict[str, Any]) -> None:
    page = (sweep / "report/report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 8
    assert not re.search(r"""(src|href)=["'](?!data:)""", page) and "@import" not in page and "<script" not in page
    assert page.index(report["headline"][0][:40]) < page.index("<table")


def test_the_same_sweep_gives_the_same_report(sweep: Path, report: dict[str, Any]) -> None:
    before = {path: path.read_bytes() for path in (sweep / "report").rglob("*") if path.is_file()}
    report_of(sweep)
    assert before == {path: path.read_bytes() for path in (sweep / "report").rglob("*") if path.is_file()}


def test_left_out_trials_are_listed_with_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = write_sweep(tmp_path / "s", SMALL)
    write_trial(sweep / "trials/P32-G8-sqrt-s0", [], status="failed")
    (sweep / "trials/P32-G8-sqrt-s1/outcome.json").unlink()
    records = trial_records(SMALL.arms[0], SMALL, np.random.default_rng(1))
    write_trial(sweep / "trials/P8-G8-sqrt-s2", [r for r in records if r["kind"] == "train"])
    found = report_of(sweep)
    assert {trial["trial_id"]: trial["status"] for trial in found["excluded"]} == {
        "P32-G8-sqrt-s0": "failed",
        "P32-G8-sqrt-s1": "unfinished",
        "P8-G8-sqrt-s2": "completed",
    }
    assert "Left out: 3 trials (1 failed, 1 unfinished and 1 completed)" in capsys.readouterr().out


def test_damaged_lines_are_counted_in_the_report(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", SMALL)
    path = sweep / "trials/P8-G8-sqrt-s0/metrics.jsonl"
    path.write_text(path.read_text()[:-30])
    found = report_of(sweep)
    assert any(text == "Skipped: 1 damaged line of metrics.jsonl, in P8-G8-sqrt-s0." for text in found["warnings"])


def test_a_sweep_without_learning_still_has_a_report(tmp_path: Path) -> None:
    """Nothing but nulls and flags: no NaN, no figure that fails."""
    sweep = write_sweep(tmp_path / "s", replace(SMALL, timing_rounds=0))
    for trial in (sweep / "trials").iterdir():
        evals = [
            {"kind": "eval", "samples_trained": 1024 * k, "optimizer_steps": k, "metrics": {"eval/score": 0.0}}
            for k in range(4)
        ]
        write_trial(trial, [record | {"samples_generated": 0, "wall_s": 0.0} for record in evals])
    found = report_of(sweep)
    assert {arm["verdict"] for arm in found["arms"]} == {"reference", "inconclusive"}
    assert {arm["aligned"] for arm in found["arms"]} == {None}
    assert found["recommendation"]["arm"] is None
    assert found["headline"][0] == "No arm learned anything, so nothing can be said about the batch."
    assert "No seconds were recorded: q, r_q and r_T are unknown." in found["warnings"]


def test_a_target_chosen_by_rule_and_one_out_of_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reference is at 0.8 after 1.61 * 9,000 samples, at 0.85 after 20,000, beyond 0.8 * 24,576."""
    sweep = write_sweep(tmp_path / "s", SMALL)
    found = report_of(sweep, "--target", "auto")["target"]
    assert found["value"] == 0.8 and "the reference holds" in found["rule"]
    assert main(["report", str(sweep), "--target", "1.5"]) == 2
    assert "1.5; scores lie between 0 and 1" in capsys.readouterr().err


def test_one_seed_is_told_as_measured_once(tmp_path: Path) -> None:
    """Without noise r_N is 1.1 and r_q 2.4: r_T 0.46."""
    found = report_of(write_sweep(tmp_path / "s", replace(SMALL, num_seeds=1, seed_sd=0.0, eval_sd=0.0, clock_sd=0.0)))
    first, aligned, *_ = found["headline"]
    assert first == (
        "Which arm reaches 0.7 in eval/score first cannot be told without a second seed; measured once, against a batch of "
        "64 responses (P8-G8-sqrt), the shortest time is 0.46 times its (B = 256) and the fewest samples are 1.10 times its "
        "(B = 256)."
    )
    assert aligned == "Measured once with the sqrt rule, r_N is 1.10 at B = 256."


def test_one_arm_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", SMALL)
    for trial in sweep.glob("trials/P32-*/outcome.json"):
        trial.unlink()
    first, *others = report_of(sweep)["headline"]
    assert first.startswith(
        "Only one arm has results, P8-G8-sqrt, so there is nothing to compare it with: it reaches 0.7"
    )
    assert others[-1] == "Left out: 3 trials (3 unfinished); the report lists why."


@pytest.mark.parametrize("target", ["0.5", "0.899", "0.2"])
def test_other_targets(sweep: Path, tmp_path: Path, target: str) -> None:
    """Early, out of everybody's reach, and below the start: each gives a whole report."""
    copy = write_sweep(tmp_path / "s", STUDY)
    found = report_of(copy, "--target", target)
    assert found["target"]["value"] == float(target)
    if target != "0.5":
        assert found["recommendation"]["arm"] is None


def test_a_report_of_another_target_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    """report/ is of the last target asked for; asking again for the same one replaces it."""
    sweep = write_sweep(tmp_path / "s", SMALL)
    report_of(sweep)
    (sweep / "report/curves.html").write_text("a notebook")
    assert report_of(sweep, "--target", "0.5")["target"]["value"] == 0.5
    kept = json.loads((sweep / "report_target_0.7/report.json").read_text())
    assert kept["target"]["value"] == 0.7 and (sweep / "report_target_0.7/curves.html").is_file()
    report_of(sweep, "--target", "0.5")
    assert report_of(sweep)["target"]["value"] == 0.7
    assert sorted(path.name for path in sweep.glob("report*")) == ["report", "report_target_0.5", "report_target_0.7"]


@pytest.mark.parametrize("name", ["[/bold]<script>alert(1)</script>", "$x_{ :smile: {{ 7 * 7 }} 漢字"])
def test_names_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    sweep = write_sweep(tmp_path / "s", replace(SMALL, num_seeds=2))
    plan = json.loads((sweep / "plan.json").read_text())
    for trial in plan["trials"]:
        if trial["arm"] == "P32-G8-sqrt":
            trial["arm"] = name
    plan |= {"sweep": name, "question": name, "assumptions": [name]}
    (sweep / "plan.json").write_text(json.dumps(plan))
    (sweep / "trials/P32-G8-sqrt-s1/outcome.json").write_text(json.dumps({"status": "failed", "reason": name}))
    found = report_of(sweep)
    assert found["sweep"] == name and found["excluded"][0]["reason"] == name
    printed = capsys.readouterr().out
    assert name in printed and f"Assumed: {name}" in printed
    page = (sweep / "report/report.html").read_text(encoding="utf-8")
    assert f"<h1>{escape(name)}</h1>" in page and "<script" not in page


def test_wrong_input_is_one_sentence_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and "plan.json" in error
    with pytest.raises(SystemExit) as stopped:
        main(["report", str(tmp_path), "--target", "high"])
    assert stopped.value.code == 2


def test_a_folder_that_cannot_be_written_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = write_sweep(tmp_path / "s", SMALL)
    (sweep / "report").write_text("in the way")
    assert main(["report", str(sweep)]) == 3
    assert "report" in capsys.readouterr().err
