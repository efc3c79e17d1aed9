"""Grids, distances, copies and learning signal of curves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.curves import (
    Curve,
    by_arm,
    common_grid,
    copies_of,
    curves_of,
    shows_learning,
    thin,
)
from analysis.errors import InputError
from analysis.load import load_sweep
from tests.analysis.synthetic import ArmTruth, SweepTruth, trial_records, write_sweep, write_trial

SMALL = SweepTruth([ArmTruth(8), ArmTruth(32)], num_seeds=2)


def line(slope: float, every: float, last: float, shift: float = 0.0) -> Curve:
    samples = np.arange(0.0, last + 1, every)
    return Curve(samples, slope * samples + shift)


def test_the_common_grid_is_the_coarsest_curve_where_all_have_data() -> None:
    assert common_grid([[line(1, 10, 100)], [line(1, 40, 80)]]).tolist() == [0, 40, 80]
    assert common_grid([[line(1, 10, 100)], [line(1, 40, 160)]]).tolist() == [0, 40, 80]


def test_thinning_keeps_an_irregular_grid_at_its_own_points() -> None:
    curve = Curve(np.array([0.0, 1536, 3072, 4608, 6144]), np.arange(5.0))
    assert thin(curve, 2048).samples_K.tolist() == [0, 3072, 4608, 6144]
    assert thin(curve, 0).samples_K.tolist() == curve.samples_K.tolist()


def test_flat_and_falling_curves_show_no_learning() -> None:
    rng = np.random.default_rng(0)
    flat = [Curve(np.arange(12.0), 0.3 + 0.02 * rng.standard_normal(12)) for _ in range(5)]
    rising = [Curve(np.arange(12.0), np.linspace(0.3, 0.4, 12) + 0.02 * rng.standard_normal(12)) for _ in range(5)]
    assert not shows_learning([flat, [Curve(np.arange(3.0), np.zeros(3))] * 5])
    assert not shows_learning([[line(-0.1, 1, 5)]])
    assert shows_learning([flat, rising])
    assert shows_learning([[line(0.1, 1, 5)]])
    assert not shows_learning([[], []])


def copied(tmp_path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> dict[str, str]:
    """copies_of a sweep whose seed 1 has the records of seed 0 after a change."""
    sweep = write_sweep(tmp_path / "s", SMALL)
    lines = (sweep / "trials/P8-G8-sqrt-s0/metrics.jsonl").read_text().splitlines()
    write_trial(sweep / "trials/P8-G8-sqrt-s1", change([json.loads(line) for line in lines]))
    loaded = load_sweep(sweep)
    return copies_of(loaded, curves_of(loaded))


def other_last_score(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last = max(place for place, record in enumerate(records) if record["kind"] == "eval")
    return [*records[:last], records[last] | {"metrics": {"eval/score": 0.123}}]


def other_first_scores(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [r | {"metrics": {"eval/score": 0.1}} if r["samples_trained"] == 1024 else r for r in records]


@pytest.mark.parametrize("change", [lambda r: r, other_last_score, lambda r: r[: 2 * len(r) // 3]])
def test_two_seeds_with_one_curve_are_one_trial(tmp_path: Path, change: Any) -> None:
    """The same records; another last score; stopped after two thirds."""
    assert copied(tmp_path, change) == {"P8-G8-sqrt-s1": "P8-G8-sqrt-s0"}


def test_two_seeds_that_part_early_are_two(tmp_path: Path) -> None:
    assert copied(tmp_path, other_first_scores) == {}


def test_constant_curves_and_chance_repetitions_are_no_copies(tmp_path: Path) -> None:
    """Every group wrong gives 0 everywhere; two evaluations of 4 prompts may coincide while the updates differ."""
    sweep = write_sweep(tmp_path / "s", SMALL)
    for score in (0.0, 0.25):
        for number in range(2):
            records = trial_records(SMALL.arms[0], SMALL, np.random.default_rng(number))
            kept = [record for record in records if record["kind"] == "train" or record["samples_trained"] < 2000]
            for record in kept:
                if record["kind"] == "eval":
                    record["metrics"] = {"eval/score": score if record["samples_trained"] else 0.0}
            write_trial(sweep / f"trials/P8-G8-sqrt-s{number}", kept)
        loaded = load_sweep(sweep)
        assert copies_of(loaded, curves_of(loaded)) == {}


def test_a_metric_that_was_not_recorded_is_named_with_those_that_were(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", SMALL)
    plan = json.loads((sweep / "plan.json").read_text())
    plan["target"]["metric"] = "eval/accuracy"
    (sweep / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(InputError, match=r"'eval/accuracy'.*eval/score, eval/score_se"):
        curves_of(load_sweep(sweep))


def test_curves_are_grouped_by_arm_in_seed_order(tmp_path: Path) -> None:
    loaded = load_sweep(write_sweep(tmp_path / "s", SMALL))
    groups = by_arm(loaded, curves_of(loaded))
    assert {arm: len(curves) for arm, curves in groups.items()} == {"P8-G8-sqrt": 2, "P32-G8-sqrt": 2}
    assert groups["P32-G8-sqrt"][0].samples_K[:3].tolist() == [0, 1024, 2048]
