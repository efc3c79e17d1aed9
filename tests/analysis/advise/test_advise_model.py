"""The posterior against hand-worked numbers, and advices of simulated truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.advise.checks import NOISE_CHECK, check, prior_left
from analysis.advise.decide import Decision, Rule, allocate
from analysis.advise.evidence import Candidate, Evidence, LocalRatio, Noise, Speed
from analysis.advise.model import FITTED, NO_NOISE, WARY, Prior, posterior, prior_covariance
from analysis.advise.simulate import Truth, simulate
from analysis.penalty import LogSample

ARMS = tuple(Candidate(f"P{p}", p, 8, f"P{p}") for p in (4, 8, 16, 32))
# B_n is known exactly: 448 responses, so h(256) = (256 + 448) / (64 + 448) = 1.375.
NOISE = Noise(math.log(448), 1e-3)
STIFF = Prior(noise_sd=1e-3, octave_sd=0.1, roughness=((1.0, 1.0),))


# The reference as good as known, with a spread over seeds of 0.1.
MANY = LogSample(math.log(9000.0) + np.tile([-0.1, 0.1], 5000))


def log_sample(*values: float, bounds: tuple[float, ...] = ()) -> LogSample:
    return LogSample(np.log(np.array(values, dtype=float)), np.log(np.array(bounds, dtype=float)))


def evidence(**more: object) -> Evidence:
    found = Evidence(ARMS, "P8", {"P8": log_sample(9000, 9000, 9000)}, noise=NOISE)
    return replace(found, **more)  # type: ignore[arg-type]


def test_an_arm_without_runs_follows_the_formula() -> None:
    """Var of log r_N of two octaves: 0.1^2 * 2."""
    post = posterior(evidence(), STIFF)
    mean, sd = post.moments(post.contrast("P32", "P8"))
    assert math.exp(mean) == pytest.approx(1.375, rel=1e-3) and sd == pytest.approx(math.sqrt(0.02), rel=1e-2)


def test_runs_and_prediction_are_weighed_by_their_variances() -> None:
    """A run of variance s^2 = 0.01 that is 0.3 above a prediction of variance v = 0.02: v / (v + s^2) of the way."""
    prior = replace(STIFF, seed_sd=0.1, seed_df=1e5)
    runs = {"P8": MANY, "P32": log_sample(9000 * 1.375 * math.e**0.3)}
    post = posterior(evidence(runs=runs), prior)
    mean, sd = post.moments(post.contrast("P32", "P8"))
    assert mean - math.log(1.375) == pytest.approx(0.3 * 0.02 / (0.02 + 0.01), abs=5e-3)
    assert sd == pytest.approx(math.sqrt(0.02 * 0.01 / 0.03), rel=0.03)


def test_a_bound_moves_the_mean_by_the_moments_of_the_cut_normal() -> None:
    """y ~ N(m, v), seen beyond m with error s^2: mean m + v / sqrt(v + s^2) * phi(0) / Phi(0), here 0.7979 v / sd."""
    prior = replace(STIFF, seed_sd=0.1, seed_df=1e5)
    runs = {"P8": MANY, "P32": log_sample(bounds=(9000 * 1.375,))}
    post = posterior(evidence(runs=runs), prior)
    mean, _ = post.moments(post.contrast("P32", "P8"))
    assert mean - math.log(1.375) == pytest.approx(0.7979 * 0.02 / math.sqrt(0.03), rel=0.03)


def test_a_branch_counts_with_its_own_and_the_common_error() -> None:
    """Prediction 0.02, branch 0.05^2 + 0.15^2 = 0.025 (as set here): 0.02 / 0.045 of the way."""
    local = {"P32": LocalRatio(math.log(1.375) + 0.45, 0.05)}
    post = posterior(evidence(branches=local), replace(STIFF, branch_shift=0.0, branch_shift_sd=0.0, branch_sd=0.15))
    mean, _ = post.moments(post.contrast("P32", "P8"))
    assert mean - math.log(1.375) == pytest.approx(0.2, abs=5e-3)


def test_branches_that_all_err_by_the_same_say_nothing_of_the_reference() -> None:
    """Each shows log r_N + b: where b may be anything their differences are left, and the formula's r_N stays."""
    local = {arm: LocalRatio(math.log((8 * int(arm[1:]) + 448) / 512) + 1.2, 0.05) for arm in ("P16", "P32")}
    open_ = replace(STIFF, branch_shift=0.0, branch_shift_sd=10.0, branch_sd=0.05)
    for prior in (open_, replace(open_, branch_shift=1.2, branch_shift_sd=0.0)):
        post = posterior(evidence(branches=local), prior)
        mean, _ = post.moments(post.contrast("P32", "P8"))
        assert mean - math.log(1.375) == pytest.approx(0.0, abs=0.02)
    known = posterior(evidence(branches=local), replace(open_, branch_shift_sd=0.0))
    assert known.moments(known.contrast("P32", "P8"))[0] - math.log(1.375) > 0.8


def test_neighbours_move_together_and_the_other_side_does_not() -> None:
    """Brownian: with 3 octaves known exactly the middle of 2 moves by 2 / 3 of it; the smaller batch not at all."""
    cov = prior_covariance(evidence(), STIFF)
    # P4 (1 octave below), P8, P16 (1 above), P32 (2 above)
    assert cov == pytest.approx(0.01 * np.array([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 2]]))


def test_another_group_size_is_known_by_the_split_alone() -> None:
    other = Candidate("P8-G16", 8, 16, "P8-G16")
    own = evidence(candidates=(*ARMS, other))
    assert prior_covariance(own, STIFF)[4, 4] == pytest.approx(0.01 + 0.2**2 + 1.0)
    split = replace(own, noise=replace(NOISE, between_frac=0.5))
    assert prior_covariance(split, STIFF)[4, 4] == pytest.approx(0.01 + 0.2**2)


def test_arms_that_differ_in_the_system_share_their_runs() -> None:
    twin = Candidate("P32-gen64", 32, 8, "P32")
    runs = {"P8": log_sample(9000, 9000), "P32": log_sample(12000), "P32-gen64": log_sample(13000)}
    speed = {name: Speed(0.0, 0.01) for name in ("P8", "P32", "P32-gen64")}
    decision = Decision(evidence(candidates=(*ARMS, twin), runs=runs, speed=speed), Rule())
    assert decision.reached("P32") == decision.reached("P32-gen64") == 2
    assert decision.r_N("P32") == decision.r_N("P32-gen64")


def speeds(**log_q: float) -> dict[str, Speed]:
    return {name: Speed(value, 0.01, 32) for name, value in log_q.items()}


def test_the_leader_is_not_advised_before_it_ran() -> None:
    """P32 is expected to take 1.375 / 2 of the time, but two runs of it are missing: they are asked for."""
    known = evidence(speed=speeds(P4=-0.5, P8=0.0, P16=0.1, P32=math.log(2)))
    decision = Decision(known, Rule())
    assert decision.leader == "P32" and decision.advised == "P8" and not decision.separated
    assert allocate(decision, dict.fromkeys(("P4", "P8", "P16", "P32"), 5), workers=2)[0] == "P32"
    ran = replace(known, runs={**known.runs, "P32": log_sample(12375, 12300, 12450)})
    after = Decision(ran, Rule())
    assert after.advised == "P32" and after.separated
    r_T = after.r_T("P32")
    assert r_T.estimate == pytest.approx(0.6875, rel=0.02)


def test_nothing_is_asked_for_without_seeds() -> None:
    decision = Decision(evidence(speed=speeds(P8=0.0, P16=0.1)), Rule())
    assert allocate(decision, {"P8": 0, "P16": 0}, workers=2) == []
    assert allocate(decision, {"P8": 2, "P16": 0}, workers=4).count("P8") <= 2


def test_an_untimed_arm_has_no_time() -> None:
    decision = Decision(evidence(speed=speeds(P8=0.0)), Rule())
    assert decision.timed == ["P8"] and decision.r_T("P32").estimate is None
    assert Decision(evidence(), Rule()).leader is None


def test_checks_notice_a_wrong_noise_scale_and_a_cliff() -> None:
    agree = {"P16": log_sample(10100, 10100), "P32": log_sample(12400, 12400)}
    known = evidence(noise=Noise(math.log(448), 0.15))
    right = replace(known, runs=known.runs | agree)
    assert all(one.agrees for one in check(right)) and prior_left(check(right)) == FITTED
    # r_N as if B_n were 60: (256 + 60) / 124 = 2.55, (128 + 60) / 124 = 1.52
    early = {"P16": log_sample(13700, 13700), "P32": log_sample(22900, 22900)}
    wrong = {one.name for one in check(replace(known, runs=known.runs | early)) if not one.agrees}
    assert NOISE_CHECK in wrong
    # No hyperbola falls by a third and then trebles.
    cliff = {"P16": log_sample(6000, 6000), "P32": log_sample(36000, 36000)}
    assert prior_left(check(replace(known, runs=known.runs | cliff))) == WARY


def test_a_noise_scale_that_branches_contradict_is_given_up_alone() -> None:
    """Branches as if B_n were 3,600, eight times what was measured: (512 + 3600) / 3664 and so on."""
    arms = tuple(Candidate(f"P{p}", p, 8, f"P{p}") for p in (8, 16, 32, 64, 128, 256))
    local = {c.arm: LocalRatio(math.log((c.train_batch + 3600) / 3664), 0.05) for c in arms[1:]}
    found = evidence(candidates=arms, branches=local, noise=Noise(math.log(448), 0.15))
    checks = check(found)
    assert prior_left(checks) == NO_NOISE
    post = Decision(found, Rule()).posterior
    assert math.exp(float(post.weight_K @ post.noise_K)) > 1500


@pytest.mark.parametrize(
    "truth",
    [
        Truth(10.0, 4.0),
        Truth(10.0, 4.0, seed_sd=0.15),
        Truth(16.0, 4.0, knee=True),
        Truth(10.0, 4.0, noise_factor=1 / 3),
        Truth(10.0, 4.0, noise_factor=3.0),
    ],
    ids=["hyperbola", "spread .15", "knee", "noise / 3", "noise x 3"],
)
def test_simulated_advices_are_within_a_tenth_of_the_best(truth: Truth) -> None:
    """Of 10 procedures with 90% within 10% fewer than 7 are hardly ever seen (binomial, 1.3%)."""
    outcomes = simulate(truth, 10)
    assert sum(one.regret <= 0.10 for one in outcomes) >= 8
    assert np.mean([one.share for one in outcomes]) < 0.35
    covered = [hit for one in outcomes for hit in one.covered]
    assert np.mean(covered) > 0.80
