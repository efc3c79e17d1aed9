"""Advice from records that are not the harness's own: what they cannot hold, and which arms are no candidates."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.advise.advice import load_advice
from analysis.advise.content import build_advice
from analysis.advise.words import headline
from tests.analysis.advise.advise_sweep import TRUTH, begin
from tests.analysis.synthetic import write_sweep


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_target_that_is_met_before_training_is_no_advice(tmp_path: Path) -> None:
    """Scores begin at 0.2: no arm has an N*, so no ratio and no probability is shown."""
    sweep = write_sweep(tmp_path / "s", replace(TRUTH, num_seeds=2, target=0.1))
    content = build_advice(load_advice(sweep))
    told = headline(content)
    assert told.startswith("No advice yet for 0.1 in eval/score: a run of the reference scores 0.")
    assert "before it is trained, so the target must be higher." in told
    assert content["next"] == [] and content["advice"] is None and content["expected_fastest"] is None
    for arm in content["arms"]:
        assert (arm["runs"], arm["reached"]) == (2, 2)
        assert arm["r_N"]["estimate"] is arm["r_T"]["estimate"] is arm["probability_best"] is None


def test_a_target_that_no_run_reaches_is_no_advice(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", replace(TRUTH, num_seeds=2, target=0.99))
    told = headline(build_advice(load_advice(sweep)))
    assert "no run reaches 0.99, and the highest score is 0.8" in told and "the target must be lower" in told


def test_records_without_seconds_say_r_N_and_no_advice(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", replace(TRUTH, num_seeds=2, timing_rounds=0))
    for path in sweep.glob("trials/*/metrics.jsonl"):
        rewrite(
            path, lambda line: line.update(seconds={}, wall_s=0.0) if "seconds" in line else line.update(wall_s=0.0)
        )
    content = build_advice(load_advice(sweep))
    assert "No advice yet for 0.7 in eval/score: no seconds were recorded" in headline(content)
    assert content["next"] == [] and all(arm["r_N"]["estimate"] is not None for arm in content["arms"])
    assert all(arm["r_T"]["estimate"] is None for arm in content["arms"])


def test_arms_that_learn_in_another_way_are_left_out_and_why_is_said(tmp_path: Path) -> None:
    """Temperature and steps to a batch tell the last two apart; 64, 128 and 256 make one step of each batch."""
    sweep = write_sweep(tmp_path / "s", replace(TRUTH, num_seeds=2))
    plan = json.loads((sweep / "plan.json").read_text())
    arms = list(dict.fromkeys(trial["arm"] for trial in plan["trials"]))
    for trial in plan["trials"]:
        axes, number = trial["axes"], arms.index(trial["arm"])
        axes["temperature"] = 0.7 if number == 1 else 1.0
        axes["mini_batch_size"] = axes["train_batch"] // (4 if number == 3 else 1)
        axes["gpus"] = 8 * (number + 1)
    (sweep / "plan.json").write_text(json.dumps(plan))
    content = build_advice(load_advice(sweep))
    assert [arm["arm"] for arm in content["arms"]] == [arms[0], arms[2]]
    assert content["left_out"] == {
        arms[1]: "temperature 0.7, where the reference has 1",
        arms[3]: "mini_batch_size 4 to a batch, where the reference has 1 to a batch",
    }
    assert main(["advise", str(sweep)]) == 0
    page = (sweep / "advice" / "report.html").read_text()
    assert f"Left out: {arms[1]} (temperature 0.7, where the reference has 1) and {arms[3]} (mini" in page


def test_an_advice_of_another_target_is_kept_beside(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", replace(TRUTH, num_seeds=2))
    for target, kept in ((), set()), (("--target", "0.6"), {0.7}), ((), {0.6, 0.7}):
        assert main(["advise", str(sweep), *target]) == 0
        beside = {path.parent.name: json.loads(path.read_text()) for path in sweep.glob("advice*/advice.json")}
        assert {found["target"]["value"] for name, found in beside.items() if name != "advice"} == kept
        assert beside["advice"]["target"]["value"] == (0.6 if target else 0.7)


@pytest.mark.parametrize("seconds", ["NaN", "-5", '"long"', "true", "1e999", "[]"])
def test_seconds_that_are_no_number_count_for_nothing(tmp_path: Path, seconds: str) -> None:
    folder = begin(tmp_path / "x-advise")
    (folder / "advise.log.jsonl").write_text(f'{{"step": 1, "seconds": {seconds}}}\n{{"step": 2, "seconds": 7}}\n')
    assert build_advice(load_advice(folder))["cost"]["seconds"] == 7


@pytest.mark.parametrize("number", ["NaN", "-1", "0", "Infinity"])
def test_a_whole_sweep_of_no_samples_is_refused(
    tmp_path: Path, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begin(tmp_path / "x-advise")
    content = (folder / "advise.json").read_text().rstrip("}") + f', "full_sweep_samples": {number}}}'
    (folder / "advise.json").write_text(content)
    assert main(["advise", str(folder)]) == 2
    assert "full_sweep_samples is" in capsys.readouterr().err


def test_a_folder_in_place_of_a_log_is_no_log(tmp_path: Path) -> None:
    folder = begin(tmp_path / "x-advise")
    (folder / "advise.log.jsonl").mkdir()
    assert build_advice(load_advice(folder))["cost"]["seconds"] is None


def test_a_notable_chance_to_break_is_said(tmp_path: Path) -> None:
    content = build_advice(load_advice(write_sweep(tmp_path / "s", replace(TRUTH, num_seeds=2))))
    assert "may break" not in headline(content)
    row = next(arm for arm in content["arms"] if arm["arm"] == content["advice"]["arm"])
    likely = {"estimate": 0.12, "ci95": [0.004, 0.31]}
    told = headline(content | {"advice": content["advice"] | {"breaks": likely}, "arms": [row | {"breaks": likely}]})
    assert "with probability 12% (under 1% to 31%; none of its 2 runs did), which its time includes." in told
