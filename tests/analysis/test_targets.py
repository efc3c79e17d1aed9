"""The target where none is stated, and the levels at which r_N(target) is read."""

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.errors import InputError
from analysis.load import load_sweep
from analysis.targets import default_target, reached_levels, round_levels
from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep

SAMPLES = np.arange(0.0, 11_000, 1000)


def curve(*scores: float) -> tuple[np.ndarray, np.ndarray]:
    return SAMPLES[: len(scores)], np.array(scores)


RISING = curve(*np.linspace(0.2, 0.7, 11))


def test_levels_are_round_and_lie_above_every_start() -> None:
    """0.2 to 0.7 is ten steps of 0.05; the second curve starts at 0.27, so 0.25 is reached before training."""
    assert round_levels([RISING]).tolist() == [0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7]
    assert round_levels([RISING, curve(0.27, 0.4, 0.5)]).tolist()[0] == 0.3
    assert not len(round_levels([curve(0.5, 0.5)]))


def test_the_default_is_the_highest_level_that_every_seed_holds_to_the_end() -> None:
    """N* must be within 8,000 of 10,000: the line reaches 0.6 at 8,000; the slower seed 0.5 at 8,000, 0.6 never."""
    assert default_target([RISING]).value == 0.6
    slower = curve(*np.linspace(0.2, 0.575, 11))
    found = default_target([RISING, slower])
    assert found.value == 0.5
    assert found.rule == (
        "of the multiples of 0.05, the highest that every seed of the reference holds with a fifth of its samples left and a "
        "tenth to rise"
    )
    assert reached_levels([RISING, slower])[-1] == 0.55


def test_a_level_that_is_lost_again_is_not_held() -> None:
    """0.35 to 0.5 are reached at 5,000 and lost at 6,000, within a quarter; 0.3 is held from 3,000 to 4,000."""
    assert default_target([curve(0.0, 0.1, 0.2, 0.3, 0.3, 0.5, 0.1, 0.3, 0.3, 0.3, 0.4)]).value == 0.3


def test_a_level_on_the_plateau_is_no_target() -> None:
    """0.55 is held from 4,000 on, but the curve ends at 0.56: nine tenths of its rise are 0.504."""
    assert default_target([curve(0.0, 0.2, 0.4, 0.5, 0.55, 0.56, 0.56, 0.56, 0.56, 0.56, 0.56)]).value == 0.5


def test_without_a_level_that_holds_the_lowest_stands_in() -> None:
    """Flat but for its end: 0.65 at the last evaluation only. And a score that never changes gives itself."""
    late = default_target([curve(*[0.2] * 10, 0.65)])
    assert late.value == 0.22 and late.rule.startswith("of the multiples of 0.02, the lowest")
    assert default_target([curve(0.4, 0.4)]).value == 0.4
    with pytest.raises(InputError, match="no evaluation of the reference"):
        default_target([])


def test_scores_of_any_unit() -> None:
    """Rewards from -3 to 12: steps of 1, and -2 is the first above the start."""
    rewards = SAMPLES, np.linspace(-3.0, 12.0, 11)
    assert round_levels([rewards]).tolist()[:2] == [-2.0, -1.0]
    assert default_target([rewards]).value == 9.0


def test_a_plan_without_a_target_takes_the_default_of_the_reference(tmp_path: Path) -> None:
    """0.8 comes at log(6.2) / log(3.1) = 1.61 N* = 14,500, 0.85 at 20,000, beyond 0.8 * 24,576.

    The other arm is three times as slow: it has no say. Asking for "auto" overrules a stated target.
    """
    truth = SweepTruth([ArmTruth(8), ArmTruth(32, 3.0)], num_seeds=2, seed_sd=0.01, eval_sd=0.0)
    sweep = write_sweep(tmp_path / "s", truth)
    asked = load_sweep(sweep, "auto")
    plan = json.loads((sweep / "plan.json").read_text())
    plan["target"]["value"] = None
    (sweep / "plan.json").write_text(json.dumps(plan))
    found = load_sweep(sweep)
    assert (found.target, found.target_rule) == (asked.target, asked.target_rule)
    assert found.target == 0.8
    named = load_sweep(sweep, 0.5)
    assert (named.target, named.target_rule) == (0.5, "named for this report")
