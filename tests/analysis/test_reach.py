"""How far each way of growing the batch keeps samples to target within 1.1."""

from pathlib import Path

import pytest

from analysis.load import load_sweep
from analysis.reach import reaches
from analysis.study import Study
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep


def study_of(path: Path, *arms: ArmTruth) -> Study:
    truth = SweepTruth(arms, seed_sd=0.002, eval_sd=0.0, num_seeds=3, budget_samples=32768)
    return Study(load_sweep(write_sweep(path / "sweep", truth)))


def test_each_way_passes_its_limit_between_two_arms(tmp_path: Path) -> None:
    """log 1.1 is half of log 1.21: half of the way from 128 to 256, 181; from 64 to 128, 90.5; G = 16, 32: never."""
    study = study_of(
        tmp_path,
        ArmTruth(8),
        ArmTruth(16, 1.0),
        ArmTruth(32, 1.21),
        ArmTruth(16, 1.21, lr_rule="fixed"),
        ArmTruth(8, 1.0, group_size=16),
        ArmTruth(8, 1.0, group_size=32),
        ArmTruth(4, 0.9),
    )
    groups, prompts, fixed = reaches(study)
    assert groups.way == "8 prompts, more responses to each"
    assert (groups.interval.estimate, groups.interval.bound, groups.largest) == (None, "lower", 256)
    assert prompts.way == "the reference's rule" and prompts.arms == ("P16-G8-sqrt", "P32-G8-sqrt")
    assert prompts.interval.estimate == pytest.approx(181, rel=0.02)
    assert prompts.interval.low is not None and prompts.interval.high is not None
    assert prompts.interval.low < 181 < prompts.interval.high
    assert fixed.way == "lr_rule fixed" and fixed.start == study.reference
    assert fixed.interval.estimate == pytest.approx(90.5, rel=0.02)


def test_a_way_that_changes_the_reference_counts_from_its_own_arm_there(tmp_path: Path) -> None:
    """The fixed rule's own arm at B = 64 needs 1.5 times the samples, 1.5 * 1.21 at 128: 1.21 of its own start."""
    study = study_of(
        tmp_path,
        ArmTruth(8),
        ArmTruth(16, 1.0),
        ArmTruth(8, 1.5, lr_rule="fixed"),
        ArmTruth(16, 1.5 * 1.21, lr_rule="fixed"),
    )
    fixed = next(reach for reach in reaches(study) if reach.way == "lr_rule fixed")
    assert fixed.start == "P8-G8-fixed"
    assert fixed.start_r_N.estimate == pytest.approx(1.5, rel=0.02)
    assert fixed.interval.estimate == pytest.approx(90.5, rel=0.02)


def test_one_way_alone_is_no_comparison(tmp_path: Path) -> None:
    assert reaches(study_of(tmp_path, ArmTruth(8), ArmTruth(16, 1.3))) == []
