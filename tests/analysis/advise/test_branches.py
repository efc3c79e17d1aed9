"""Local ratios of branches against curves with known answers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.advise.branches import NO_GAIN, WANDER_SD, Branch, combined, local_ratio, local_ratios
from analysis.curves import Curve
from analysis.simulate import true_score

PARENT = Curve(np.arange(0.0, 12001, 500), true_score(np.arange(0.0, 12001, 500) / 9000))


@pytest.mark.parametrize("r_N", [0.8, 1.0, 1.5, 3.0])
def test_the_ratio_that_slowed_the_branch_is_found(r_N: float) -> None:
    gone = np.arange(0.0, 2049, 256)
    branch = Curve(3000 + gone, true_score((3000 + gone / r_N) / 9000))
    outcome, ratio, sd = local_ratio(PARENT, 3000, branch)
    assert outcome == "gain" and ratio == pytest.approx(r_N, rel=0.02) and sd == pytest.approx(WANDER_SD)


def test_a_noisy_score_makes_a_wide_ratio() -> None:
    """Slope a sample about 0.42 / 9000 at N0; n = 2,000 gains 0.07: an error of 0.01 is about 0.14 of it."""
    gone = np.array([0.0, 2000.0])
    branch = Curve(3000 + gone, true_score((3000 + gone) / 9000))
    _, _, sd = local_ratio(PARENT, 3000, branch, score_se=0.01)
    assert 0.10 < math.sqrt(sd**2 - WANDER_SD**2) < 0.20


def test_no_gain_is_a_bound() -> None:
    branch = Curve(np.array([3000.0, 5000.0]), np.full(2, PARENT.at(np.array([2900.0]))[0]))
    assert local_ratio(PARENT, 3000, branch)[:2] == ("no gain", None)
    assert local_ratio(PARENT, 3000, Curve(np.array([3000.0]), np.array([0.4])))[:2] == ("no gain", None)
    found = combined([made(None), made(None), made(1.2)])
    assert found.beyond and found.log_r_N == pytest.approx(NO_GAIN)


def test_points_are_averaged_on_the_log_scale() -> None:
    found = combined([made(1.0), made(4.0)])
    assert not found.beyond and math.exp(found.log_r_N) == pytest.approx(2.0)
    assert found.sd == pytest.approx(0.10 / math.sqrt(2))


def test_moments_are_kept_apart() -> None:
    both = [made(1.0, "restored"), made(4.0, "rescaled")]
    assert math.exp(local_ratios(both, "rescaled")["a"].log_r_N) == pytest.approx(4.0)
    assert math.exp(local_ratios(both)["a"].log_r_N) == pytest.approx(2.0)


def made(ratio: float | None, moments: str = "rescaled") -> Branch:
    return Branch("a", "p", 0, 3000.0, 2000.0, moments, "gain" if ratio else "no gain", ratio, 0.10)


def test_a_branch_that_falls_below_its_start_says_nothing() -> None:
    """0.05 below where it began: no r_N does that."""
    start = float(PARENT.at(np.array([3000.0]))[0])
    outcome, ratio, _ = local_ratio(PARENT, 3000, Curve(np.array([3000.0, 5000.0]), np.array([start, start - 0.05])))
    assert (outcome, ratio) == ("shaken", None)
    shaken = replace(made(None), outcome="shaken")
    assert local_ratios([shaken, made(1.5)])["a"].log_r_N == pytest.approx(math.log(1.5))
    assert local_ratios([shaken]) == {}
