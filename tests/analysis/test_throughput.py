"""Rates from counts and seconds, and r_q from interleaved rounds."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from analysis.load import load_sweep
from analysis.penalty import Spread
from analysis.throughput import Clock, choose, clocks, rates
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep, write_trial

TRUTH = SweepTruth([ArmTruth(8, samples_per_s=1000), ArmTruth(32, samples_per_s=2000)], num_seeds=2)


def train_record(step: int, trained: int, seconds: float) -> dict[str, object]:
    phases = {"generate": 0.6 * seconds, "reward": 0.1 * seconds, "train": 0.2 * seconds, "sync": 0.1 * seconds}
    counters = {"samples_trained": trained, "samples_generated": trained, "optimizer_steps": step}
    # The wall clock holds a checkpoint and an evaluation as well: it must not be read.
    return {"kind": "train", "step": step, **counters, "wall_s": 100.0 * step, "seconds": phases, "metrics": {}}


def test_samples_over_the_seconds_of_the_four_phases(tmp_path: Path) -> None:
    """125 + 112 + 121 samples in 2 + 2 + 3 s: 358 / 7 = 51.14 samples/s, 0.6 * 7 / 358 s of generation each.

    The batch of the plan is 64 and the wall clock 300 s: neither is the answer.
    """
    sweep = write_sweep(tmp_path / "s", SweepTruth([ArmTruth(8)], num_seeds=1, timing_rounds=0))
    records = [train_record(1, 125, 2.0), train_record(2, 237, 2.0), train_record(3, 358, 3.0)]
    write_trial(sweep / "trials/P8-G8-sqrt-s0", records)
    means = clocks(load_sweep(sweep))["records"].means("P8-G8-sqrt")
    assert means["samples_per_s"] == pytest.approx(358 / 7)
    assert means["generate_s_per_sample"] == pytest.approx(0.6 * 7 / 358)
    assert means["train_s_per_sample"] == pytest.approx(0.2 * 7 / 358)


def test_checkpoint_and_evaluation_are_no_part_of_q(tmp_path: Path) -> None:
    """A step of 2506.9 s held 2322.5 s of checkpoint and 43.9 s of evaluation: 5120 / 140.5 = 36.4, not 2.04."""
    sweep = write_sweep(tmp_path / "s", SweepTruth([ArmTruth(8)], num_seeds=1, timing_rounds=0))
    record = train_record(1, 5120, 140.5) | {"wall_s": 2506.9}
    record["seconds"] = {**record["seconds"], "checkpoint": 2322.5, "eval": 43.9}  # type: ignore[dict-item]
    write_trial(sweep / "trials/P8-G8-sqrt-s0", [record])
    assert clocks(load_sweep(sweep))["records"].means("P8-G8-sqrt")["samples_per_s"] == pytest.approx(36.4, abs=0.05)


def test_seconds_after_a_gap_are_left_out_with_their_samples(tmp_path: Path) -> None:
    """Step 2 is lost: 100 samples in 1 s and 100 in 1 s remain; step 3 would look like 200 samples in 1 s."""
    sweep = write_sweep(tmp_path / "s", SweepTruth([ArmTruth(8)], num_seeds=1, timing_rounds=0))
    records = [train_record(1, 100, 1.0), train_record(3, 300, 1.0), train_record(4, 400, 1.0)]
    write_trial(sweep / "trials/P8-G8-sqrt-s0", records)
    assert clocks(load_sweep(sweep))["records"].means("P8-G8-sqrt")["samples_per_s"] == pytest.approx(100)


def test_r_q_is_the_mean_over_rounds_of_the_ratio_within_a_round() -> None:
    """Rounds at (100, 200), (50, 110), (80, 150): log ratios log 2, log 2.2, log 1.875; the slow round hits both."""
    rows = [
        {"arm": arm, "repeat": number, "samples": rate, "tokens": 0, "generate_s": 0.5, "train_s": 0.5, "reward_s": 0.0}
        | {"sync_s": 0.0}
        for number, pair in enumerate([(100, 200), (50, 110), (80, 150)])
        for arm, rate in zip("ab", pair, strict=True)
    ]
    clock = Clock("timing", rates(pd.DataFrame(rows)))
    ratio = clock.log_ratio("b", "a")
    logs = [math.log(2), math.log(2.2), math.log(1.875)]
    assert ratio is not None
    assert ratio.value == pytest.approx(sum(logs) / 3)
    assert ratio.variance == pytest.approx(pd.Series(logs).var() / 3)
    assert ratio.df == 2
    a, b = clock.means("a")["samples_per_s"], clock.means("b")["samples_per_s"]
    assert a is not None and b is not None
    assert math.log(b / a) == pytest.approx(ratio.value)


def test_the_timing_pass_is_preferred_and_records_fill_in(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", TRUTH)
    found = clocks(load_sweep(sweep))
    assert list(found) == ["timing", "records"]
    assert choose(found, "P32-G8-sqrt", "P8-G8-sqrt") is found["timing"]
    lines = [line for line in (sweep / "timing.jsonl").read_text().splitlines() if json.loads(line)["arm"][:3] == "P8-"]
    (sweep / "timing.jsonl").write_text("\n".join(lines) + "\n")
    found = clocks(load_sweep(sweep))
    assert choose(found, "P32-G8-sqrt", "P8-G8-sqrt") is found["records"]
    ratio = found["records"].log_ratio("P32-G8-sqrt", "P8-G8-sqrt")
    assert ratio is not None
    assert math.exp(ratio.value) == pytest.approx(2, rel=0.05)


def test_without_seconds_there_is_no_clock(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", SweepTruth([ArmTruth(8)], num_seeds=1, timing_rounds=0))
    write_trial(sweep / "trials/P8-G8-sqrt-s0", [train_record(1, 64, 0.0)])
    assert clocks(load_sweep(sweep)) == {}


def test_no_round_that_measured_every_arm_leaves_no_spread() -> None:
    rows = [("a", 1), ("b", 2)]
    index = pd.MultiIndex.from_tuples(rows, names=["arm", "repeat"])
    clock = Clock("timing", pd.DataFrame({"samples_per_s": [100.0, 200.0]}, index=index))
    assert clock.spread(["a", "b"]) == Spread(0.0, 0)
