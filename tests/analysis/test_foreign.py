"""Files that are not what they stand for: another trial's folder, other people's folders, damaged logs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.load import load_sweep
from tests.analysis.synthetic import write_sweep


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "a.csv"
    rows = [f"{step},{0.1 * step},1.0" for step in range(1, 9)]
    path.write_text("\n".join(["step,score,seconds", *rows]) + "\n")
    return path


def imported(table: Path, out: Path, *more: str) -> int:
    return main(["import", str(table), "--num-prompts", "4", "--group-size", "2", "--out", str(out), *more])


def test_nothing_that_is_no_imported_run_is_replaced(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "out" / "trials" / "a" / "precious.txt"
    precious.parent.mkdir(parents=True)
    precious.touch()
    assert imported(table, tmp_path / "out") == 2
    assert precious.exists() and not (tmp_path / "out" / "plan.json").exists()
    assert "is there but no imported run that can be read" in capsys.readouterr().err


def test_a_stored_run_that_cannot_be_read_is_not_dropped_in_silence(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert imported(table, out) == 0
    (out / "trials" / "a" / "config.json").write_text("{")
    other = shutil.copy(table, tmp_path / "b.csv")
    assert imported(Path(other), out) == 2
    assert [trial["trial_id"] for trial in json.loads((out / "plan.json").read_text())["trials"]] == ["a"]


@pytest.mark.parametrize("more", [("--target", "nan"), ("--lr", "-1"), ("--lr", "inf"), ("--arm", "x" * 500)])
def test_what_cannot_be_planned_writes_nothing(table: Path, tmp_path: Path, more: tuple[str, str]) -> None:
    assert imported(table, tmp_path / "out", *more) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("cell", ["inf", "1e308", "9" * 400])
def test_a_damaged_log_is_a_sentence(
    table: Path, tmp_path: Path, cell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_text(table.read_text() + f"{cell},0.9,1.0\n")
    assert imported(table, tmp_path / "out") in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_a_row_without_its_arm_is_no_arm(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_text("step,score,arm\n1,0.1,a\n2,0.2,a\n3,0.3,\n")
    assert imported(table, tmp_path / "out") == 2
    assert "row 3 has no arm, which others have" in capsys.readouterr().err


def test_the_folder_of_another_trial_is_no_data(tmp_path: Path) -> None:
    """Two arms' configurations in the plan; the first trial's folder holds the second's."""
    sweep = write_sweep(tmp_path / "sweep")
    plan = json.loads((sweep / "plan.json").read_text())
    for trial in plan["trials"]:
        trial["config"]["batch"] = {**trial["config"].get("batch", {}), "num_prompts": trial["axes"]["num_prompts"]}
        (sweep / "trials" / trial["trial_id"] / "config.json").write_text(json.dumps(trial["config"]))
    (sweep / "plan.json").write_text(json.dumps(plan))
    assert set(load_sweep(sweep).trials["status"]) == {"completed"}
    mine = plan["trials"][0]
    other = next(t for t in plan["trials"] if t["axes"]["num_prompts"] != mine["axes"]["num_prompts"])
    shutil.rmtree(sweep / "trials" / mine["trial_id"])
    shutil.copytree(sweep / "trials" / other["trial_id"], sweep / "trials" / mine["trial_id"])
    row = load_sweep(sweep).trials.loc[mine["trial_id"]]
    assert (row["status"], row["reason"]) == ("foreign", "its config.json is not the plan's: it differs in batch")
