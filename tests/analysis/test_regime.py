"""The closed form of T, its minimum, and which knee comes first; sweeps whose truth is known."""

import math
from pathlib import Path

import numpy as np
import pytest

from analysis.independent import product
from analysis.load import load_sweep
from analysis.penalty import Interval
from analysis.regime import TimeModel, relative_time
from analysis.scales import Scales
from analysis.study import Study
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep

CRITICAL, HALF_SPEED = 1000.0, 40.0
BATCHES = (16, 32, 64, 128, 256, 512, 1024)


def arm(train_batch: int, generate_share: float = 0.5) -> ArmTruth:
    """N* along 1 + B/1000, q along 3000 / (1 + 40/B)."""
    r_N = (1 + train_batch / CRITICAL) / (1 + 64 / CRITICAL)
    return ArmTruth(train_batch // 8, r_N, 3000 / (1 + HALF_SPEED / train_batch), generate_share=generate_share)


def model(folder: Path, arms: list[ArmTruth], **truth: float) -> TimeModel:
    sweep = SweepTruth(arms, seed_sd=0.03, clock_sd=0.02, **truth)  # type: ignore[arg-type]
    return TimeModel(Scales(Study(load_sweep(write_sweep(folder / "s", sweep, seed=3)))))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> TimeModel:
    arms = [arm(64), *(arm(batch) for batch in BATCHES if batch != 64)]
    return model(tmp_path_factory.mktemp("known"), arms)


def test_the_optimum_is_the_root_of_both_batches(known: TimeModel) -> None:
    """sqrt(1000 * 40) = 200, where 1.2^2 = 1.44; at the reference 1.064 * 1.625 = 1.729: r_T = 0.8329."""
    half, optimum = known.half_speed_batch, known.optimum
    assert half.low is not None and half.high is not None and half.low < HALF_SPEED < half.high
    assert half.high / half.low < 1.5
    best = optimum.interval
    assert best.low is not None and best.high is not None and best.low < 200 < best.high
    assert best.high / best.low < 1.5
    assert optimum.r_T == pytest.approx(0.8329, abs=0.03)
    assert known.best_arm in ("P16-G8-sqrt", "P32-G8-sqrt")
    error = known.rms_log_error()
    assert error is not None and error < 0.05


def test_the_training_knee_lies_where_samples_are_a_third_more(known: TimeModel) -> None:
    """1 + B/1000 = 4/3 * 1.064 at B = 419; the chord of log r_N in log B from 256 to 512 comes a little later."""
    knee = known.training_knee
    assert knee.low is not None and knee.high is not None and knee.low < 419 < knee.high
    assert knee.estimate == pytest.approx(419, rel=0.2)


def test_the_closed_form_by_hand() -> None:
    assert relative_time(400, 100, 400, 100) == pytest.approx(2 * 1.25 / (1.25 * 2))


def test_limits_of_a_geometric_mean_cover() -> None:
    """2,000 pairs of independent log-normal estimates with exact limits: 0.95 within three standard errors, 0.015."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        parts = []
        for truth, sd in ((math.log(400), 0.3), (math.log(25), 0.1)):
            found = truth + sd * rng.standard_normal()
            parts.append(Interval(math.exp(found), math.exp(found - 1.96 * sd), math.exp(found + 1.96 * sd)))
        mean = product(*parts).map(math.sqrt)
        assert mean.low is not None and mean.high is not None
        held += mean.low < 100 < mean.high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_generation_full_before_samples_are_lost(tmp_path: Path) -> None:
    """Rates within 2% from 64 on, r_N flat: generation is full at 16 already, no loss is seen up to 256."""
    arms = [ArmTruth(8, 1.0, 2000), ArmTruth(2, 1.0, 1950), ArmTruth(16, 1.0, 2000), ArmTruth(32, 1.0, 2010)]
    found = model(tmp_path, arms)
    assert found.training_knee.bound == "lower" and found.training_knee.low == 256
    assert found.regime == "generation_first"
    assert found.optimum.interval.estimate is None


def test_samples_lost_before_generation_is_full(tmp_path: Path) -> None:
    """Rates proportional to the batch, r_N = 2 at four times the reference; 90% of the rate is nowhere in sight."""
    arms = [ArmTruth(8, 1.0, 500), ArmTruth(16, 1.4, 1000), ArmTruth(32, 2.0, 2000)]
    found = model(tmp_path, arms)
    assert found.regime == "training_first"
    assert found.training_knee.high is not None and found.training_knee.high <= 256


def test_without_seconds_or_learning_nothing_is_said(tmp_path: Path) -> None:
    found = model(tmp_path, [ArmTruth(8), ArmTruth(32)], timing_rounds=0)
    assert found.speed_fit is None and found.optimum.flag == "B_c is not known"
    assert found.r_T(256) is None and found.rms_log_error() is None
