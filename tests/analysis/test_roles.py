"""Shares of the time of engine and trainer: means over time, not over updates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.load import load_sweep
from analysis.results import analyse
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep

TRUTH = SweepTruth([ArmTruth(8), ArmTruth(32)], num_seeds=2, timing_rounds=0)


def with_roles(folder: Path) -> Path:
    """Of the reference's updates each second one takes three times as long, and there the engine is always busy."""
    plan = json.loads((folder / "plan.json").read_text())
    for trial in plan["trials"]:
        trial["config"]["execution"] = {"mode": "streaming"}
        path = folder / "trials" / trial["trial_id"] / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            if record["kind"] == "train" and trial["arm"] == "P8-G8-sqrt":
                slow = record["step"] % 2 == 0
                record["seconds"] = {"generate": 1.0, "reward": 0.0, "train": 5.0 if slow else 1.0, "sync": 0.0}
                record["engine"] = {"busy_frac": 1.0 if slow else 0.5, "in_flight_mean": 60.0 if slow else 30.0}
                record["engine"] |= {"tail_frac": 0.1, "places": 64}
                record["trainer"] = {"busy_frac": 5 / 6 if slow else 0.5}
            elif record["kind"] == "train":
                record["engine"] = "damaged"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder


def test_shares_are_of_the_time(tmp_path: Path) -> None:
    results = analyse(load_sweep(with_roles(write_sweep(tmp_path / "sweep", TRUTH))))
    # 384 updates of 64 samples: of 8 s a pair the engine is busy for 6 + 1, the trainer for 5 + 1. Both: 7/8 + 6/8 - 1.
    # In flight over the 7 s: (60 * 6 + 30 * 1) / 7.
    [row] = results.report["roles"]  # the other arm's records do not say it
    assert (row["arm"], row["mode"], row["train_batch"]) == ("P8-G8-sqrt", "streaming", 64)
    expected: dict[str, Any] = {"engine_busy_frac": 7 / 8, "trainer_busy_frac": 6 / 8, "overlap_frac": 5 / 8}
    expected |= {"in_flight_mean": 390 / 7, "tail_frac": 0.1}
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert results.tables["roles"]["engine_busy_frac"].tolist() == pytest.approx([7 / 8])


def test_records_without_roles_have_none(tmp_path: Path) -> None:
    assert analyse(load_sweep(write_sweep(tmp_path / "sweep", TRUTH))).report["roles"] == []
