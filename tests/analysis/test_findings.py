"""Predictions from the reference's noise, the unit of the batch, cadence, and how arms are named."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.gradients import noise_scale
from analysis.labels import short_label
from analysis.load import load_sweep
from analysis.penalty import Interval
from analysis.prediction import adam, log_error, optimal_step, over_noise
from analysis.results import analyse
from analysis.scales import Scales
from analysis.study import Study
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep

Metrics = Callable[[str, int], dict[str, float]]


def with_metrics(sweep: Path, metrics: Metrics) -> Path:
    """Replace the metrics of every train record by metrics(arm, seed)."""
    for trial in (sweep / "trials").iterdir():
        arm, _, seed = trial.name.rpartition("-s")
        path = trial / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            if record["kind"] == "train":
                record["metrics"] = {"grad/actor_norm": 1.0} | metrics(arm, int(seed))
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return sweep


def found_in(sweep: Path) -> dict[str, Any]:
    return analyse(load_sweep(sweep)).report


def test_both_forms_by_hand() -> None:
    """B_n = 300, B_ref = 100, B = 500: h = (1 + 5/3) / (1 + 1/3) = 2; square root sqrt 2; fixed 5 sqrt(1.6 / 4)."""
    assert optimal_step(500, 100, 300) == pytest.approx(2)
    assert adam(500, 100, math.sqrt(5), 300) == pytest.approx(math.sqrt(2))
    assert adam(500, 100, 1, 300) == pytest.approx(5 * math.sqrt(1.6 / 4))
    assert adam(500, 100, 5, 300) == pytest.approx(math.sqrt(1.6 / 4)), "the linear rule: five times the rate"


def test_the_interval_is_that_of_the_noise_scale_in_either_direction() -> None:
    """B_n in [100, 700]: at B = 500 h lies in [1200/800, 600/200], at B = 50 in [150/200, 750/800]."""
    noise = Interval(300.0, 100.0, 700.0)
    assert over_noise(lambda b: optimal_step(500, 100, b), noise) == Interval(2.0, 1.5, 3.0)
    assert over_noise(lambda b: optimal_step(50, 100, b), noise) == Interval(0.875, 0.75, 0.9375)
    assert over_noise(lambda b: optimal_step(50, 100, b), Interval(300.0)) == Interval(0.875)
    assert over_noise(lambda b: optimal_step(50, 100, b), Interval()) == Interval()


def test_predictions_stand_beside_what_was_measured(tmp_path: Path) -> None:
    """B_n = 64 = B_ref: at B = 256 h = (1 + 4) / (1 + 1) = 2.5, fixed 4 sqrt((1 + 1/4) / 2); a group of 4 has none."""
    arms = [ArmTruth(8), ArmTruth(32, 1.5), ArmTruth(32, 2.0, lr_rule="fixed"), ArmTruth(32, group_size=4)]
    sweep = write_sweep(tmp_path / "s", SweepTruth(arms, num_seeds=3, seed_sd=0.02))
    noise = {"grad/noise_trace": 64.0, "grad/signal_sq": 1.0}
    report = found_in(with_metrics(sweep, lambda arm, seed: noise))
    sqrt, fixed = report["prediction"]["arms"]
    assert (sqrt["arm"], fixed["arm"]) == ("P32-G8-sqrt", "P32-G8-fixed")
    assert sqrt["optimal_step"]["estimate"] == pytest.approx(2.5)
    assert sqrt["adam"]["estimate"] == pytest.approx(math.sqrt(2.5))
    assert fixed["adam"]["estimate"] == pytest.approx(4 * math.sqrt(1.25 / 2))
    assert fixed["optimal_step"]["estimate"] is None
    errors = [math.log(row["adam"]["estimate"] / row["r_N"]["estimate"]) for row in (sqrt, fixed)]
    assert [row["adam"]["log_error"] for row in (sqrt, fixed)] == pytest.approx(errors)
    rms = math.sqrt((errors[0] ** 2 + errors[1] ** 2) / 2)
    assert report["prediction"]["rms_log_error"]["adam"] == pytest.approx(rms)
    assert any("Adam's is worst at B = 256 with the fixed rule, 3.16 predicted" in text for text in report["headline"])


def test_a_bound_has_no_error() -> None:
    assert log_error(Interval(2.0), Interval(None, 1.5, None, "lower")) is None
    assert log_error(Interval(2.0), Interval(1.0)) == pytest.approx(math.log(2))


MATCHED = SweepTruth([ArmTruth(32), ArmTruth(128, group_size=2), ArmTruth(8, group_size=32)], num_seeds=3, seed_sd=0.02)


def split(between: float, within: float) -> Metrics:
    """tr(S) = G between + within in every arm, with |G|^2 = 1."""

    def metrics(arm: str, seed: int) -> dict[str, float]:
        size = int(arm.split("-")[1][1:])
        shift = 0.01 * (seed - 1)
        trace = size * between + within
        parts = {"grad/noise_trace": trace + shift, "grad/signal_sq": 1.0 + shift}
        return parts | {"grad/noise_between_trace": between, "reward/zero_variance_frac": 1 / size}

    return metrics


def test_matched_pairs_that_agree_make_the_responses_the_unit(tmp_path: Path) -> None:
    report = found_in(with_metrics(write_sweep(tmp_path / "s", MATCHED), split(0.0, 256.0)))
    groups = report["groups"]
    assert groups["unit"] == "P*G"
    assert [row["group_size"] for row in groups["matched"]] == [2, 8, 32]
    assert [row["dead_frac"]["estimate"] for row in groups["matched"]] == pytest.approx([1 / 2, 1 / 8, 1 / 32])
    assert [row["optimal_step"]["estimate"] for row in groups["matched"]] == pytest.approx([1, 1, 1])
    assert "P*G is the unit here: 256 responses are worth about the same at G = 2, 8 and 32." in report["headline"]


def test_matched_pairs_can_say_that_the_responses_are_not_the_unit(tmp_path: Path) -> None:
    """between 16, within 128, |G|^2 = 1, B = 256: equal at G = 8; tr(S) = 160, 256, 640 at G = 2, 8, 32.

    At G = 32 the split predicts (1 + 640/256) / (1 + 256/256) = 1.75, by Adam its root, 1.32.
    """
    truth = replace(MATCHED, arms=[*MATCHED.arms[:2], replace(MATCHED.arms[2], r_N=1.8)])
    report = found_in(with_metrics(write_sweep(tmp_path / "s", truth), split(16.0, 128.0)))
    groups = report["groups"]
    assert groups["unit"] == "not P*G"
    assert groups["equal_group_size"]["estimate"] == pytest.approx(8)
    assert [row["split_trace"]["estimate"] for row in groups["matched"]] == pytest.approx([160, 256, 640])
    large = groups["matched"][-1]
    assert large["optimal_step"]["estimate"] == pytest.approx(1.75)
    assert large["adam"]["estimate"] == pytest.approx(math.sqrt(1.75))
    assert any(text.startswith("P*G is NOT the unit here: with the same 256") for text in report["headline"])


def test_the_leave_one_out_baseline_adds_its_own_variance(tmp_path: Path) -> None:
    """1 + 1/(G - 1) is 2, 8/7, 32/31 at G = 2, 8, 32: within 128 at G = 8 is 224 and 115.6 at the others."""
    sweep = with_metrics(write_sweep(tmp_path / "s", MATCHED), split(16.0, 128.0))
    plan = sweep / "plan.json"
    plan.write_text(plan.read_text().replace('"algorithm": "grpo"', '"algorithm": "rloo"'))
    found = [row["split_trace"]["estimate"] for row in found_in(sweep)["groups"]["matched"]]
    assert found == pytest.approx([32 + 224, 256, 512 + 128 * (32 / 31) / (8 / 7)])


def test_without_matched_pairs_nothing_is_said_of_the_unit(tmp_path: Path) -> None:
    """One group size and no split: no verdict, no sentence."""
    report = found_in(write_sweep(tmp_path / "s", SweepTruth([ArmTruth(8), ArmTruth(32)], num_seeds=2)))
    assert report["groups"]["unit"] is None and report["groups"]["matched"] == []
    assert report["groups"]["between_trace"]["flag"] == "not recorded"
    assert not any("P*G" in text for text in report["headline"])


def test_cadence_counts_steps_and_moves_per_batch_and_sample(tmp_path: Path) -> None:
    """B = 64 with update norm 0.01 and KL 0.002: 1.5625e-4 and 3.125e-5 a sample; the other arm recorded nothing."""
    sweep = write_sweep(tmp_path / "s", SweepTruth([ArmTruth(8), ArmTruth(32)], num_seeds=3))
    moves = {"policy/update_norm": 0.01, "policy/kl_from_behaviour": 0.002}
    report = found_in(with_metrics(sweep, lambda arm, seed: moves if arm.startswith("P8-") else {}))
    (row,) = report["cadence"]
    assert (row["arm"], row["optimizer_steps_per_batch"]) == ("P8-G8-sqrt", 1.0)
    assert row["update_norm"]["estimate"] == pytest.approx(0.01) and row["kl"]["ci95"][0] == pytest.approx(0.002)
    assert row["update_norm_per_sample"] == pytest.approx(1.5625e-4)
    assert row["kl_per_sample"] == pytest.approx(3.125e-5)


def test_a_trace_comes_from_the_window_of_the_reference(tmp_path: Path) -> None:
    """Means over the updates within the window, by seed: 1.0 less and more 0.01 over three seeds."""
    sweep = with_metrics(write_sweep(tmp_path / "s", MATCHED), split(0.0, 256.0))
    scales = Scales(Study(load_sweep(sweep)))
    assert scales.seed_means("P32-G8-sqrt", "grad/signal_sq").tolist() == pytest.approx([0.99, 1.0, 1.01])
    assert scales.seed_means("P32-G8-sqrt", "grad/unknown").empty
    assert noise_scale(
        *(scales.seed_means("P32-G8-sqrt", f"grad/{n}").to_numpy() for n in ("noise_trace", "signal_sq"))
    )


def test_arms_are_named_by_what_tells_them_apart() -> None:
    def named(*arms: dict[str, Any]) -> list[str]:
        basis = {"lr_rule": "sqrt", "train_batch": 64, "lr": 2e-4, "group_size": 8, "axes": {"in_flight": 64}}
        report = {"arms": [basis | {"arm": f"arm{place}"} | arm for place, arm in enumerate(arms)]}
        return [short_label(report, arm) for arm in report["arms"]]

    assert named({}, {"train_batch": 128}) == ["B = 64", "B = 128"]
    assert named({}, {"lr": 4e-4}) == ["lr 2e-4", "lr 4e-4"]
    assert named({}, {"group_size": 16}) == ["G = 8", "G = 16"]
    steps = [{"axes": {"batch.mini_batch_size": size}} for size in (64, 8)]
    assert named(*steps) == ["mini batch size 64", "mini batch size 8"]
    assert named({}, {"lr": 4e-4}, {"train_batch": 128}) == ["arm0", "arm1", "B = 128"]
