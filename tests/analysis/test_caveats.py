"""What a report says of its own data: wrong input with what is left out, and records that make one doubt."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.caveats import caveats_of, errors_of
from analysis.load import load_sweep
from analysis.record_caveats import holes, record_caveats, some
from analysis.study import Study
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep

PAIR = SweepTruth([ArmTruth(8, 1.0, 1000), ArmTruth(32, 1.0, 2000)], num_seeds=2, timing_rounds=2)
FIRST = "P8-G8-sqrt-s0"
Change = Callable[[dict[str, Any]], dict[str, Any] | None]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return write_sweep(tmp_path / "s", PAIR)


def change_records(sweep: Path, pattern: str, change: Change) -> None:
    """Replace every record of the trials by change(record); None takes it out."""
    for path in sweep.glob(f"trials/{pattern}/metrics.jsonl"):
        records = [change(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(record) + "\n" for record in records if record is not None))


def change_plan(sweep: Path, **changes: Any) -> None:
    plan = json.loads((sweep / "plan.json").read_text())
    (sweep / "plan.json").write_text(json.dumps(plan | changes))


def found_in(sweep: Path) -> list[str]:
    return record_caveats(load_sweep(sweep))


def test_sound_records_give_no_doubt(sweep: Path) -> None:
    assert found_in(sweep) == []
    assert errors_of(Study(load_sweep(sweep))) == []


def test_copies_are_an_error_with_a_report_that_leaves_one_out(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = sweep / "trials" / FIRST / "metrics.jsonl"
    (sweep / "trials/P8-G8-sqrt-s1/metrics.jsonl").write_bytes(records.read_bytes())
    assert main(["report", str(sweep)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {FIRST} and P8-G8-sqrt-s1 have identical curves: the seed reached nothing")
    report = json.loads((sweep / "report/report.json").read_text())
    assert report["excluded"] == [
        {
            "trial_id": "P8-G8-sqrt-s1",
            "status": "copy",
            "reason": f"its curve is that of {FIRST}: the seed reached nothing",
        }
    ]
    reference = next(arm for arm in report["arms"] if arm["arm"] == "P8-G8-sqrt")
    assert reference["num_seeds"] == 1 and f"error: {report['errors'][0]}\n" == error
    assert "identical curves" in (sweep / "report/report.html").read_text()


def test_a_seed_that_is_planned_twice_counts_once(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = json.loads((sweep / "plan.json").read_text())["trials"]
    change_plan(sweep, trials=[*trials, trials[0] | {"trial_id": "again"}])
    assert main(["report", str(sweep)]) == 2
    assert capsys.readouterr().err == (
        f"error: again is the same arm with the same seed as {FIRST}: it is left out; take one of them out of the plan.\n"
    )
    report = json.loads((sweep / "report/report.json").read_text())
    assert [arm["num_seeds"] for arm in report["arms"]] == [2, 2]


def test_a_hole_in_a_curve_is_named_with_its_ends(sweep: Path) -> None:
    """Evaluations every 1024: the one at 4096 is lost, so 3072 and 5120 are 2048 > 1024 + 64 apart."""
    lost = range(4000, 4200)
    change_records(sweep, FIRST, lambda r: None if r["kind"] == "eval" and r["samples_trained"] in lost else r)
    assert holes(load_sweep(sweep)) == [(FIRST, 3072, 5120)]
    assert found_in(sweep) == [
        f"Evaluations are missing in {FIRST} between 3,072 and 5,120 samples: an N* in such a hole is interpolated "
        "across it."
    ]


@pytest.mark.parametrize("num_prompts", [125, 80, 192, 3])
def test_a_grid_that_the_batch_does_not_divide_has_no_holes(tmp_path: Path, num_prompts: int) -> None:
    """B = 1000 is evaluated at 2000, 3000, 4000, ...; 640 at 1280, 2560, 3200, ...; 1536 and 24 likewise."""
    truth = replace(PAIR, arms=[ArmTruth(8), ArmTruth(num_prompts)])
    assert holes(load_sweep(write_sweep(tmp_path / "s", truth))) == []


def test_evaluations_without_a_number_are_counted(sweep: Path) -> None:
    def spoil(record: dict[str, Any]) -> dict[str, Any]:
        if record["kind"] == "eval" and record["samples_trained"] in (1024, 2048):
            record["metrics"]["eval/score"] = "0.5"
        return record

    change_records(sweep, "P8-*", spoil)
    assert "Left out: 4 evaluations without a number for eval/score, in P8-G8-sqrt-s0 and P8-G8-sqrt-s1." in found_in(
        sweep
    )


def test_scores_outside_the_unit_interval_say_where_and_how_many(sweep: Path) -> None:
    def shift(record: dict[str, Any]) -> dict[str, Any]:
        if record["kind"] == "eval" and record["samples_trained"] in (0, 2048):
            record["metrics"]["eval/score"] = -0.5 if record["samples_trained"] else 1.25
        return record

    change_records(sweep, FIRST, shift)
    assert found_in(sweep) == [
        f"eval/score lies outside [0, 1] in 2 of 100 evaluations, from -0.5 to 1.25, in {FIRST}: right for a score of "
        "another kind, wrong for a share of right answers."
    ]


def test_records_that_count_prompts_are_told(sweep: Path) -> None:
    """P = 8, G = 8: N grows by 8 an update where B = 64."""

    def prompts(record: dict[str, Any]) -> dict[str, Any]:
        return record | {"samples_trained": record["samples_trained"] // 8}

    change_records(sweep, "P8-*", prompts)
    (text,) = [text for text in found_in(sweep) if "an update of" in text]
    assert text == (
        "N, r_N and q are only as right as the counts: an update of P8-G8-sqrt trains on 8 samples where the plan says "
        "B = 64 (prompts counted as samples?)."
    )


def test_a_step_back_without_a_second_attempt_is_told(sweep: Path) -> None:
    path = sweep / "trials" / FIRST / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, *lines[-4:]]) + "\n")
    (text,) = found_in(sweep)
    assert text.startswith("Made again by a resumed attempt: 4 records; the later ones count (samples_trained steps ")
    assert text.endswith(f"one attempt, in {FIRST}).")


def test_a_completed_trial_that_ends_early_is_told(sweep: Path) -> None:
    change_records(sweep, FIRST, lambda r: r if r["samples_trained"] < 9000 else None)
    assert found_in(sweep) == [
        f"The records of {FIRST} end before the budget although the trial completed: what they do not reach by then is "
        "a bound there."
    ]


def test_a_trial_that_may_end_past_the_target_and_does_is_not(sweep: Path) -> None:
    change_records(sweep, FIRST, lambda r: r if r["samples_trained"] < 9000 else None)
    plan = json.loads((sweep / "plan.json").read_text())
    for trial in plan["trials"]:
        trial["config"]["stop_past_target_frac"] = 0.5
        (sweep / "trials" / trial["trial_id"] / "config.json").write_text(json.dumps(trial["config"]))
    (sweep / "plan.json").write_text(json.dumps(plan))
    assert found_in(sweep) == []


def test_what_an_import_assumed_and_did_not_know_is_told(sweep: Path) -> None:
    trials = json.loads((sweep / "plan.json").read_text())["trials"]
    for trial in trials:
        trial["axes"]["lr"] = None
    change_plan(sweep, trials=trials, assumptions=["the step of a row is the update it follows."])
    told = caveats_of(Study(load_sweep(sweep)))
    assert "Assumed: the step of a row is the update it follows." in told
    assert any(text.startswith("The learning rate of P8-G8-sqrt and P32-G8-sqrt is not known") for text in told)


def test_an_arm_and_a_reference_without_trials_are_named(sweep: Path) -> None:
    for trial in sweep.glob("trials/P32-*/outcome.json"):
        trial.unlink()
    assert "Planned but without a finished trial, so without results: P32-G8-sqrt." in caveats_of(
        Study(load_sweep(sweep))
    )
    change_plan(sweep, reference_arm="P32-G8-sqrt")
    told = caveats_of(Study(load_sweep(sweep)))
    assert told[0] == "The reference arm P32-G8-sqrt has no finished trial: r_N, r_T and verdicts are left out."


def test_many_names_are_cut() -> None:
    assert some(["a"]) == "a"
    assert some(list("abcdef")) == "a, b, c, d and 2 more"
