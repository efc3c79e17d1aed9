"""Whole sweeps of known truth: what the study concludes, and what it does with missing, failed and useless trials."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.caveats import caveats_of
from analysis.errors import InputError
from analysis.load import load_sweep
from analysis.results import analyse
from analysis.scales import Scales
from analysis.study import Study
from tests.analysis.synthetic import STUDY, ArmTruth, SweepTruth, trial_records, write_sweep, write_trial

PAIR = SweepTruth([ArmTruth(8, 1.0, 1000), ArmTruth(32, 1.0, 2000)], num_seeds=3)
REFERENCE, ARM = "P8-G8-sqrt", "P32-G8-sqrt"


def study(sweep: Path, target: float | None = None) -> Study:
    return Study(load_sweep(sweep, target))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Six arms with r_N 1, 0.9, 1.1, 1.75, beyond the budget, and a fixed-rate control at 1.75."""
    return study(write_sweep(tmp_path_factory.mktemp("known") / "sweep"))


def test_intervals_hold_the_truth_and_verdicts_follow(known: Study) -> None:
    truth = {arm.name: arm for arm in STUDY.arms}
    expected = {
        "P2-G8-sqrt": "slower",  # 0.9 / (500 / 1300) = 2.34
        "P32-G8-sqrt": "faster",  # 1.1 / (2400 / 1300) = 0.60
        "P128-G8-sqrt": "inconclusive",  # 1.75 / (2500 / 1300) = 0.91
        "P512-G8-sqrt": "target_not_reached",  # 4.0 * 9000 = 36,000 > 24,576
        "P32-G8-fixed": "inconclusive",  # 1.75 / (2400 / 1300) = 0.95
    }
    assert known.verdict(REFERENCE) == ("reference", "")
    for arm, verdict in expected.items():
        assert known.verdict(arm)[0] == verdict
        r_N, r_q = known.r_N(arm), known.r_q(arm)
        assert r_N.low is not None and r_N.low < truth[arm].r_N
        assert r_N.high is None or r_N.high > truth[arm].r_N
        assert r_q.low is not None and r_q.high is not None
        assert r_q.low < truth[arm].samples_per_s / 1300 < r_q.high


def test_r_T_is_r_N_over_r_q(known: Study) -> None:
    r_N, r_q, r_T = known.r_N("P32-G8-sqrt"), known.r_q("P32-G8-sqrt"), known.r_T("P32-G8-sqrt")
    assert r_N.estimate is not None and r_q.estimate is not None and r_T.estimate is not None
    assert r_T.estimate == pytest.approx(r_N.estimate / r_q.estimate)


def test_alignment_and_recommendation(known: Study) -> None:
    assert known.aligned == {
        REFERENCE: None,
        "P2-G8-sqrt": True,
        "P32-G8-sqrt": True,
        "P128-G8-sqrt": False,
        "P512-G8-sqrt": False,
        "P32-G8-fixed": False,
    }
    assert known.recommendation.arm == "P32-G8-sqrt"


def test_a_censored_arm_is_bounded_by_its_budget(known: Study) -> None:
    samples = known.samples_to_target("P512-G8-sqrt")
    assert samples.estimate is None and samples.high is None
    assert samples.low == pytest.approx(24576)


def test_scales_of_known_gradients(known: Study) -> None:
    """|g|^2 = 1 + 1000 / B: from B = 16 to 256 the chord slope is log(sqrt(4.90625 / 63.5)) / log(16) = -0.4618."""
    scales = Scales(known)
    slope = scales.slope("actor")
    assert slope.train_batch_range == (16, 256)
    assert slope.interval.estimate == pytest.approx(-0.4618, abs=0.01)
    assert scales.slope("critic").flag == "grad/critic_norm is not recorded"
    noise = scales.noise_scale_from_norms().interval
    assert noise.low is not None and noise.high is not None and noise.low < 1000 < noise.high
    assert scales.noise_scale().flag == "not recorded"


def test_the_window_ends_at_the_reference_target(known: Study) -> None:
    assert Scales(known).window_samples == known.samples_to_target(REFERENCE).estimate


def test_a_trial_that_diverged_early_does_not_shorten_the_window(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", PAIR)
    records = trial_records(PAIR.arms[1], PAIR, np.random.default_rng(9))
    write_trial(sweep / f"trials/{ARM}-s0", records[:4], status="diverged")
    found = study(sweep)
    assert Scales(found).window_samples == found.samples_to_target(REFERENCE).estimate


def test_measured_noise_is_averaged_over_the_reference(tmp_path: Path) -> None:
    found = Scales(study(write_sweep(tmp_path / "s", replace(PAIR, with_noise_metrics=True)))).noise_scale()
    assert found.interval.low is not None and found.interval.high is not None
    assert found.interval.low < 1000 < found.interval.high


def test_a_failed_trial_is_left_out_and_a_diverged_one_is_a_bound_at_the_budget(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", PAIR)
    records = trial_records(PAIR.arms[1], PAIR, np.random.default_rng(9))
    write_trial(sweep / f"trials/{ARM}-s0", records[:8], status="failed")
    write_trial(sweep / f"trials/{ARM}-s1", records[:8], status="diverged")
    found = study(sweep)
    assert [trial.trial_id for trial in found.trials if trial.arm == ARM] == [f"{ARM}-s1", f"{ARM}-s2"]
    bound = found.samples["interpolated"][ARM].bounds
    assert bound.tolist() == pytest.approx([math.log(24576)])
    assert found.r_N(ARM).bound == "lower"
    assert found.verdict(ARM)[0] == "inconclusive"


def test_a_trial_that_reached_the_target_before_it_diverged_counts(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", PAIR)
    records = trial_records(PAIR.arms[1], PAIR, np.random.default_rng(9))
    write_trial(sweep / f"trials/{ARM}-s0", [r for r in records if r["samples_trained"] <= 15000], status="diverged")
    assert study(sweep).samples["interpolated"][ARM].complete


def test_the_reference_that_misses_the_target_leaves_r_N_undefined(tmp_path: Path) -> None:
    """Target 0.85 lies beyond the reference's budget in every seed: no r_N, no recommendation, no verdict."""
    truth = replace(PAIR, arms=[ArmTruth(8, 3.0), ArmTruth(32, 1.0)])
    found = study(write_sweep(tmp_path / "s", truth))
    assert found.r_N(ARM).estimate is None and found.r_N(ARM).low is None
    assert found.r_N(ARM).bound == "upper", "the arm does need fewer samples than the reference"
    assert found.recommendation.arm is None
    assert found.aligned[ARM] is None


def flat(sweep: Path, truth: SweepTruth, score: float, norm: float) -> None:
    """Overwrite every curve by a constant score, every gradient by a constant norm."""
    for trial in sorted((sweep / "trials").iterdir()):
        records = [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]
        for record in records:
            record["metrics"] = {"eval/score": score} if record["kind"] == "eval" else {"grad/actor_norm": norm}
        write_trial(trial, records)


@pytest.mark.parametrize("score", [0.0, 0.28, 0.9])
def test_flat_curves_are_inconclusive_never_aligned(tmp_path: Path, score: float) -> None:
    """Below the target nobody arrives; above it everybody is there before training: neither says anything."""
    sweep = write_sweep(tmp_path / "s", PAIR)
    flat(sweep, PAIR, score, 1.0)
    found = study(sweep)
    assert not found.learning
    assert found.verdict(ARM) == ("inconclusive", "no learning signal")
    assert found.aligned == {REFERENCE: None, ARM: None}
    assert found.recommendation.arm is None


def test_gradients_that_are_all_zero_are_no_learning_signal(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", PAIR)
    for trial in (sweep / "trials").iterdir():
        text = (trial / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in text]
        for record in records:
            if record["kind"] == "train":
                record["metrics"]["grad/actor_norm"] = 0.0
        write_trial(trial, records)
    found = study(sweep)
    assert not found.learning and found.aligned[ARM] is None
    assert Scales(found).slope("actor").interval.estimate is None


def test_one_seed_gives_estimates_without_verdicts(tmp_path: Path) -> None:
    found = study(write_sweep(tmp_path / "s", replace(PAIR, num_seeds=1)))
    assert found.r_N(ARM).estimate is not None and found.r_N(ARM).low is None
    assert found.verdict(ARM)[0] == "inconclusive"
    assert found.aligned[ARM] is None


def test_an_arm_that_was_not_run_is_shown_without_results(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", PAIR)
    for number in range(3):
        for file in (sweep / f"trials/{ARM}-s{number}").iterdir():
            file.unlink()
    found = study(sweep)
    assert found.verdict(ARM) == ("inconclusive", "no finished trial")
    assert found.aligned[ARM] is None
    assert found.r_N(ARM).estimate is None and ARM not in found.bands


def test_an_arm_that_was_not_run_does_not_stop_the_outward_test(tmp_path: Path) -> None:
    truth = replace(PAIR, arms=[ArmTruth(8), ArmTruth(32), ArmTruth(64)], seed_sd=0.02)
    sweep = write_sweep(tmp_path / "s", truth)
    for number in range(3):
        (sweep / f"trials/{ARM}-s{number}/outcome.json").unlink()
    assert study(sweep).aligned == {REFERENCE: None, ARM: None, "P64-G8-sqrt": True}


def test_rounding_up_to_an_update_can_undo_a_verdict(tmp_path: Path) -> None:
    """0.7 / 1.1 = 0.64 interpolated; but N* = 9,800 waits for the boundary at 16,384: 16384 / 14000 / 1.1 = 1.06."""
    arms = [ArmTruth(8, 1.0, 1000), ArmTruth(2048, 0.7, 1100, generate_share=0.5)]
    truth = SweepTruth(arms, reference_samples=14000, num_seeds=5, seed_sd=0.02, eval_sd=0.0, budget_samples=49152)
    found = study(write_sweep(tmp_path / "s", truth))
    large = "P2048-G8-sqrt"
    interpolated, rounded = found.r_T(large), found.r_T(large, "rounded")
    assert interpolated.high is not None and interpolated.high < 1
    assert rounded.estimate == pytest.approx(1.06, abs=0.05)
    verdict, reason = found.verdict(large)
    assert verdict == "inconclusive" and "rounded" in reason


def test_another_target_moves_every_N(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", PAIR)
    early, late = study(sweep, 0.5).samples_to_target(REFERENCE), study(sweep).samples_to_target(REFERENCE)
    assert early.estimate is not None and late.estimate is not None
    assert early.estimate < 0.6 * late.estimate


def test_irregular_grids_and_batches_that_do_not_divide_the_spacing(tmp_path: Path) -> None:
    """B = 1,536 is evaluated at 1536, 3072, ... beside the reference's 1024, 2048, ...: N* stays within 3% of truth."""
    truth = replace(PAIR, arms=[ArmTruth(8), ArmTruth(192)], seed_sd=0.01, eval_sd=0.0)
    found = study(write_sweep(tmp_path / "s", truth))
    r_N = found.r_N("P192-G8-sqrt").estimate
    assert r_N == pytest.approx(1, abs=0.03)
    assert found.coarsest_spacing == 1536


def test_diverged_trials_are_told_of_even_when_they_reached_the_target(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", PAIR)
    records = trial_records(PAIR.arms[1], PAIR, np.random.default_rng(9))
    write_trial(sweep / f"trials/{ARM}-s0", [r for r in records if r["samples_trained"] <= 15000], status="diverged")
    told = [text for text in caveats_of(study(sweep)) if "diverged" in text]
    assert told == [
        f"Trials that diverged count with what they recorded before: 1 of {ARM}. Such an arm is not safe to use."
    ]


def test_a_sweep_without_a_finished_trial_is_not_reported(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", PAIR)
    for outcome in sweep.glob("trials/*/outcome.json"):
        outcome.unlink()
    with pytest.raises(InputError, match=r"no trial of the sweep .* has finished yet \(6 unfinished\)"):
        analyse(load_sweep(sweep))
