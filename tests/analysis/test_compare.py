"""Two sweeps of known truth side by side: what moved, what differs, what cannot be compared."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.independent import difference, ratio
from analysis.load import load_sweep
from analysis.penalty import Interval
from analysis.settings import differences
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep

# r_N = (1 + B / B_c) / (1 + 64 / B_c): with B_c = 1000 at B = 64, 256, 1024 it is 1, 1.180, 1.902; with 250: 1, 1.611, 4.057.
BATCHES = (8, 32, 128)
HALVED = {"reference_samples": 4500.0, "noise_scale": 250.0}


def truth(critical: float, **changes: Any) -> SweepTruth:
    arms = [ArmTruth(n, (1 + 8 * n / critical) / (1 + 64 / critical), 1000.0) for n in BATCHES]
    fixed = {"num_seeds": 4, "seed_sd": 0.02, "budget_samples": 40960, "timing_rounds": 3, "with_noise_metrics": True}
    return SweepTruth(arms, **fixed | changes)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("compare")
    first = write_sweep(folder / "first", truth(1000.0))
    return first, write_sweep(folder / "second", truth(250.0, **HALVED), seed=1)


def compared(first: Path, second: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["compare", str(first), str(second), *arguments]) == code
    found: dict[str, Any] = json.loads(
        (first / f"compare_{second.name}/compare.json").read_text(), parse_constant=_refuse
    )
    return found


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} in compare.json")


@pytest.fixture(scope="module")
def found(both: tuple[Path, Path]) -> dict[str, Any]:
    return compared(*both)


def holds(interval: dict[str, Any], value: float) -> bool:
    low, high = interval["ci95"]
    return bool(low < value < high)


def test_the_critical_batch_and_the_reference_moved_as_they_did(found: dict[str, Any]) -> None:
    """B_c and the noise scale are a quarter, N* of the reference is half."""
    moved = {row["name"]: row["ratio"] for row in found["quantities"]}
    assert holds(moved["B_c of the fit"], 0.25) and moved["B_c of the fit"]["ci95"][1] < 0.5
    assert holds(moved["gradient noise scale"], 0.25)
    assert holds(moved["N* of the reference"], 0.5)
    assert any(
        text.startswith("B_c of the fit: ") and text.endswith("shown to be smaller.") for text in found["headline"]
    )


def test_penalties_at_common_batches(found: dict[str, Any]) -> None:
    rows = {row["train_batch"][0]: row for row in found["arms"]}
    assert found["matched_by"] == "train_batch" and list(rows) == [64, 256, 1024]
    assert holds(rows[256]["r_N"]["ratio"], 1.611 / 1.180) and holds(rows[1024]["r_N"]["ratio"], 4.057 / 1.902)
    assert rows[64]["r_N"]["ratio"]["ci95"] == [1, 1]
    for row in rows.values():
        first, second = (value["estimate"] for value in row["r_N"]["values"])
        assert row["r_N"]["ratio"]["estimate"] == pytest.approx(second / first)


def test_the_files_and_what_is_printed(both: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    compared(*both)
    folder = both[0] / "compare_second"
    assert sorted(path.name for path in folder.iterdir()) == [
        "arms.csv", "compare.json", "quantities.csv", "r_N.png", "r_N.svg",
    ]  # fmt: skip
    printed = capsys.readouterr().out
    assert "B = 1,024 sqrt" in printed and "second / first" in printed and str(folder / "compare.json") in printed


def test_bounds_give_bounds(tmp_path: Path, both: tuple[Path, Path]) -> None:
    """r_N(1024) = 4.057 is beyond a budget of 16,384 = 3.64 N*: the ratio to 1.902 is only known to be large."""
    short = write_sweep(tmp_path / "short", truth(250.0, budget_samples=16384, reference_samples=4500.0))
    ratio_1024 = compared(both[0], short)["arms"][-1]["r_N"]["ratio"]
    assert ratio_1024["estimate"] is None and ratio_1024["ci95"][1] is None
    assert 1.5 < ratio_1024["ci95"][0] < 4.057 / 1.902


def test_references_of_other_batches_are_matched_by_their_multiple(tmp_path: Path, both: tuple[Path, Path]) -> None:
    """The second's reference is B = 256: 256 and 1024 are 1 and 4 times it, like 64 and 256 of the first."""
    arms = [ArmTruth(32), ArmTruth(128, 1.2)]
    other = write_sweep(tmp_path / "other", replace(truth(1000.0), arms=arms))
    found = compared(both[0], other)
    assert found["matched_by"] == "kappa"
    assert [row["train_batch"] for row in found["arms"]] == [[64, 256], [256, 1024]]
    assert {"reference batch", "optimizer"} >= {row["kind"] for row in found["differences"]}


def change_configs(sweep: Path, config: dict[str, Any], target: float | None = None) -> None:
    plan = json.loads((sweep / "plan.json").read_text())
    for trial in plan["trials"]:
        trial["config"] |= config
    if target is not None:
        plan["target"]["value"] = target
    (sweep / "plan.json").write_text(json.dumps(plan))


def test_what_else_differs_is_named(tmp_path: Path) -> None:
    first, second = (write_sweep(tmp_path / name, truth(1000.0, num_seeds=1)) for name in ("a", "b"))
    assert differences(load_sweep(first), load_sweep(second)) == []
    change_configs(
        first, {"task": {"name": "sums", "num_digits": 5}, "tracking": {"wandb": True}, "model": {"seed": 1}}
    )
    change_configs(second, {"task": {"name": "sums", "num_digits": 6}, "model": {"warm_start": {"seed": 1}}}, 0.6)
    for sweep, cpu in ((first, "this"), (second, "other")):
        for trial in sweep.glob("trials/*"):
            (trial / "provenance.json").write_text(json.dumps({"commit": "0" * 40, "hardware": {"cpu": cpu}}))
    rows = [(row["kind"], row["field"], row["values"]) for row in differences(load_sweep(first), load_sweep(second))]
    assert rows == [
        ("target", "target", [0.7, 0.6]),
        ("task", "task.num_digits", [5, 6]),
        ("start", "model.seed", [1, None]),
        ("start", "model.warm_start.seed", [None, 1]),
        ("machine", "cpu", ["this", "other"]),
    ]
    said = compared(first, second)["headline"]
    assert said[0] == (
        "N* and r_N cannot be compared as they are: the target is 0.7 in a and 0.6 in b; --target names one for both."
    )
    assert "start (model.seed 1 / -, model.warm_start.seed - / 1)" in said[-1]
    assert not compared(first, second, "--target", "0.6")["headline"][0].startswith("N* and r_N cannot")


def test_what_only_one_of_them_states_is_not_compared(tmp_path: Path) -> None:
    """An import knows its batch and its algorithm, not its task."""
    first, second = (write_sweep(tmp_path / name, truth(1000.0, num_seeds=1)) for name in ("a", "b"))
    change_configs(first, {"task": {"name": "sums"}})
    plan = json.loads((second / "plan.json").read_text())
    for trial in plan["trials"]:
        trial["config"] = {}
        trial["axes"]["algorithm"] = "ppo"
    (second / "plan.json").write_text(json.dumps(plan))
    found = compared(first, second)
    assert [(row["kind"], row["values"]) for row in found["differences"]] == [("algorithm", ["grpo", "ppo"])]
    assert found["unstated"] == ["task", "budget"]
    assert found["headline"][-2:] == [
        "Of what both state, they differ in nothing but algorithm (algorithm grpo / ppo).",
        "Stated by one of them only, so not compared: task and budget.",
    ]


def test_a_sweep_with_itself_is_refused_and_copies_are_told(
    tmp_path: Path, both: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(both[0]), str(both[0])]) == 2
    assert "are one sweep: name two" in capsys.readouterr().err
    wrong = write_sweep(tmp_path / "wrong", truth(1000.0, num_seeds=2))
    records = [wrong / f"trials/P8-G8-sqrt-s{seed}/metrics.jsonl" for seed in (0, 1)]
    records[1].write_bytes(records[0].read_bytes())
    assert compared(both[0], wrong, code=2)["errors"][0].startswith(
        "wrong: P8-G8-sqrt-s0 and P8-G8-sqrt-s1 have identical"
    )


def test_two_sweeps_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    first, second = (write_sweep(tmp_path / name / "default", truth(1000.0, num_seeds=2)) for name in ("here", "there"))
    said = " ".join(compared(first, second)["headline"])
    assert "in default in here and " in said and "in default in there;" in said


def test_a_difference_by_hand() -> None:
    """4 - hypot(3, 4) = -1 and 4 + hypot(6, 8) = 14; unknown limits stay unknown."""
    assert difference(Interval(1.0, -7.0, 5.0), Interval(5.0, 2.0, 11.0)) == Interval(4.0, -1.0, 14.0)
    assert difference(Interval(1.0), Interval(5.0, 2.0, 11.0)) == Interval(4.0)
    assert difference(Interval(), Interval(5.0, 2.0, 11.0)) == Interval()
    assert difference(Interval(None, 3.0, None, "lower"), Interval(5.0, 2.0, 11.0)).high == 8.0


def test_a_ratio_of_numbers_that_have_no_logarithm_is_unknown() -> None:
    assert ratio(Interval(2.0), Interval(0.0)) == Interval()
    found = ratio(Interval(2.0, 1.0, 4.0), Interval(2.0, 1.0, 4.0))
    assert found.low is not None and math.log(found.low) == pytest.approx(-math.log(2) * math.sqrt(2))
