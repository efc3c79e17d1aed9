"""Signal and noise recovered from gradients whose signal and noise are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from harness.algorithm.gradient_stats import (
    NoiseSplit,
    SignalNoise,
    noise_scale,
    signal_and_noise,
    split_by_contrast,
    split_noise,
)

UPDATES, PROMPTS, GROUP, DIMENSIONS = 4000, 8, 4, 12
# |G|^2 = 12/4 = 3, tr S_inter = 12 x .5 = 6, tr S_intra = 12 x 4 = 48; tr S = 4 x 6 + 48 = 72, B_noise 24 responses
SIGNAL_SQ, BETWEEN, WITHIN = 3.0, 6.0, 48.0


@pytest.fixture(scope="module")
def gradients_UPGD() -> np.ndarray:
    """Gradients of single responses: one signal, one draw a prompt, one a response. D dimensions."""
    random = np.random.default_rng(0)
    signal = np.sqrt(SIGNAL_SQ / DIMENSIONS)
    prompts_UPD = random.normal(0, np.sqrt(BETWEEN / DIMENSIONS), (UPDATES, PROMPTS, DIMENSIONS))
    responses_UPGD = random.normal(0, np.sqrt(WITHIN / DIMENSIONS), (UPDATES, PROMPTS, GROUP, DIMENSIONS))
    return signal + prompts_UPD[:, :, None] + responses_UPGD


def norm_sq(gradients: np.ndarray) -> np.ndarray:
    """Squared norms over the last axis."""
    return (gradients**2).sum(-1)


def assert_unbiased(estimates: list[float], truth: float) -> None:
    """The mean lies within four of its standard errors of the truth, and these are small enough to tell."""
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert error < 0.05 * truth
    assert np.mean(estimates) == pytest.approx(truth, abs=4 * error)


def two_sizes(gradients_UPGD: np.ndarray) -> list[SignalNoise]:
    """One estimate an update, from its groups and the whole."""
    groups_UP, whole_U = norm_sq(gradients_UPGD.mean(2)), norm_sq(gradients_UPGD.mean((1, 2)))
    found = [
        signal_and_noise(groups_P, GROUP, whole, PROMPTS * GROUP)
        for groups_P, whole in zip(groups_UP, whole_U, strict=True)
    ]
    return [one for one in found if one is not None]


def test_two_sizes_by_hand() -> None:
    # (32 x 2 - 8 x 5)/24 = 1; (5 - 2)/(1/8 - 1/32) = 3/(3/32) = 32
    found = signal_and_noise([5.0], 8, 2.0, 32)
    assert found is not None
    assert (found.signal_sq, found.noise_trace) == (pytest.approx(1.0), pytest.approx(32.0))
    assert noise_scale([found.signal_sq], [found.noise_trace]) == pytest.approx(32.0)


def test_a_negative_signal_gives_no_noise_scale() -> None:
    # (32 x 1 - 8 x 5)/24 = -1/3; (5 - 1)/(3/32) = 42.7
    found = signal_and_noise([5.0], 8, 1.0, 32)
    assert found is not None
    assert (found.signal_sq, found.noise_trace) == (pytest.approx(-1 / 3), pytest.approx(128 / 3))
    assert noise_scale([found.signal_sq], [found.noise_trace]) is None
    # but it counts in an average: (-1/3 + 1)/2 = 1/3, (128/3 + 32)/2 = 112/3, ratio 112
    assert noise_scale([found.signal_sq, 1.0], [found.noise_trace, 32.0]) == pytest.approx(112.0)


def test_one_size_is_not_estimable() -> None:
    assert signal_and_noise([5.0], 32, 5.0, 32) is None
    assert signal_and_noise([], 8, 5.0, 32) is None


def test_known_signal_and_noise_are_recovered(gradients_UPGD: np.ndarray) -> None:
    found = two_sizes(gradients_UPGD)
    assert_unbiased([one.signal_sq for one in found], SIGNAL_SQ)
    assert_unbiased([one.noise_trace for one in found], 72.0)
    scale = noise_scale([one.signal_sq for one in found], [one.noise_trace for one in found])
    assert scale == pytest.approx(24.0, rel=0.05)


def test_the_ratio_of_single_updates_would_be_wrong(gradients_UPGD: np.ndarray) -> None:
    found = two_sizes(gradients_UPGD)
    assert min(one.signal_sq for one in found) < 0
    # a few updates whose |G|^2 happens to be near 0 decide the mean of the ratios: twice the truth
    assert abs(np.mean([one.noise_trace / one.signal_sq for one in found]) - 24.0) > 0.5 * 24.0


@pytest.mark.parametrize("subgroup", [1, 2])
def test_the_split_is_recovered_from_responses_and_from_halves(gradients_UPGD: np.ndarray, subgroup: int) -> None:
    parts = gradients_UPGD.reshape(UPDATES, PROMPTS, GROUP // subgroup, subgroup, DIMENSIONS).mean(3)
    parts_U = norm_sq(parts).reshape(UPDATES, -1)
    groups_UP, whole_U = norm_sq(gradients_UPGD.mean(2)), norm_sq(gradients_UPGD.mean((1, 2)))
    found = [split_noise(parts_U[u], subgroup, groups_UP[u], GROUP, whole_U[u]) for u in range(UPDATES)]
    assert_split(found)
    one, same = found[0], two_sizes(gradients_UPGD[:1])[0]
    assert one is not None
    assert one.noise_trace(GROUP) == pytest.approx(same.noise_trace)
    assert one.signal_sq == pytest.approx(same.signal_sq)


def assert_split(found: list[NoiseSplit | None]) -> None:
    there = [one for one in found if one is not None]
    assert len(there) == len(found)
    assert_unbiased([one.signal_sq for one in there], SIGNAL_SQ)
    assert_unbiased([one.between_trace for one in there], BETWEEN)
    assert_unbiased([one.within_trace for one in there], WITHIN)


def halves(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Signs, half of each row 1 and half -1."""
    return random.permuted(np.tile(np.repeat([1.0, -1.0], columns // 2), (rows, 1)), axis=1)


def test_the_split_is_recovered_from_blocks_and_a_contrast(gradients_UPGD: np.ndarray) -> None:
    """Two blocks of four groups, and signs on the responses of the first, as the trainer measures them."""
    signs_UPG = halves(np.random.default_rng(1), UPDATES * 4, GROUP).reshape(UPDATES, 4, GROUP)
    blocks_UK = norm_sq(gradients_UPGD.reshape(UPDATES, 2, 4 * GROUP, DIMENSIONS).mean(2))
    whole_U = norm_sq(gradients_UPGD.mean((1, 2)))
    contrast_U = norm_sq((signs_UPG[..., None] * gradients_UPGD[:, :4]).mean((1, 2)))
    found: list[NoiseSplit | None] = []
    for blocks_K, whole, contrast in zip(blocks_UK, whole_U, contrast_U, strict=True):
        sizes = signal_and_noise(blocks_K, 4 * GROUP, whole, PROMPTS * GROUP)
        assert sizes is not None
        found.append(split_by_contrast(sizes, contrast, 4 * GROUP, GROUP))
    assert_split(found)


def test_averaged_over_all_signs_a_contrast_gives_the_split_by_parts(gradients_UPGD: np.ndarray) -> None:
    # The 6^4 ways to halve 4 groups of 4, through their sum over single groups: products of two groups vanish.
    gradients_PGD = gradients_UPGD[0, :4]
    whole, groups_P = norm_sq(gradients_PGD.mean((0, 1))), norm_sq(gradients_PGD.mean(1))
    signs = np.array([s for s in itertools.product([1.0, -1.0], repeat=4) if sum(s) == 0])
    within = np.mean([norm_sq((s[None, :, None] * gradients_PGD).mean(1)).sum() / 16 for s in signs])
    by_parts = split_noise(norm_sq(gradients_PGD), 1, groups_P, GROUP, whole)
    sizes = signal_and_noise(groups_P, GROUP, whole, 4 * GROUP)
    assert by_parts is not None and sizes is not None
    by_signs = split_by_contrast(sizes, float(within), 4 * GROUP, GROUP)
    for name in ("signal_sq", "between_trace", "within_trace"):
        assert getattr(by_signs, name) == pytest.approx(getattr(by_parts, name), rel=1e-9)


@pytest.mark.parametrize("group_size", [2, 3, 4])
def test_a_leave_one_out_baseline_is_accounted_for_exactly(group_size: int) -> None:
    """Two prompts, three answers each, every group of answers with its probability: expectations without sampling.

    The gradient is that of the logits, which the prompts share up to a fixed shift: score = one-hot - probabilities.
    """
    rewards_A = np.array([1.0, 0.0, 0.4])
    probabilities_QA = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
    means_QD, singles_Q, groups_Q = [], [], []
    for probabilities_A in probabilities_QA:
        scores_AD = np.eye(3) - probabilities_A
        means_QD.append((probabilities_A * rewards_A) @ scores_AD)
        single = group = 0.0
        for answers in itertools.product(range(3), repeat=group_size):
            drawn = list(answers)
            rewards_G = rewards_A[drawn]
            others_G = (rewards_G.sum() - rewards_G) / (group_size - 1)
            u_GD = (rewards_G - others_G)[:, None] * scores_AD[drawn]
            chance = np.prod(probabilities_A[drawn])
            single += chance * norm_sq(u_GD).mean()
            group += chance * norm_sq(u_GD.mean(0))
        singles_Q.append(single)
        groups_Q.append(group)
    signal = np.mean(means_QD, axis=0)
    between = np.mean(norm_sq(np.array(means_QD) - signal))
    # five prompts a batch, drawn from the two: E|g|^2 = |G|^2 + (E|group|^2 - |G|^2)/5
    whole = norm_sq(signal) + (np.mean(groups_Q) - norm_sq(signal)) / 5
    found = split_noise([np.mean(singles_Q)], 1, [np.mean(groups_Q)] * 5, group_size, whole, shared_baseline=True)
    assert found is not None
    assert found.signal_sq == pytest.approx(norm_sq(signal), rel=1e-9)
    assert found.between_trace == pytest.approx(between, rel=1e-9)
    assert found.signal_sq + found.between_trace / 5 + found.within_trace / (5 * group_size) == pytest.approx(whole)
    naive = split_noise([np.mean(singles_Q)], 1, [np.mean(groups_Q)] * 5, group_size, whole)
    # too large by E|mu|^2 / (G - 1)^2
    assert naive is not None
    excess = (norm_sq(signal) + between) / (group_size - 1) ** 2
    assert naive.between_trace == pytest.approx(between + excess, rel=1e-9)


def test_the_split_by_hand() -> None:
    # V - C = (40 - 8)/(1 - 1/8) = 256/7; |G|^2 = (4 x 5 - 8)/3 = 4; C = 8 - 32/7 = 24/7; I = 24/7 - 4 = -4/7
    found = split_noise([30.0, 50.0], 1, [8.0, 8.0, 8.0, 8.0], 8, 5.0)
    assert found is not None
    assert found.signal_sq == pytest.approx(4.0)
    assert found.between_trace == pytest.approx(-4 / 7)
    assert found.within_trace == pytest.approx(256 / 7)
    # G I + W = -32/7 + 256/7 = 32 = (8 - 5)/(1/8 - 1/32)
    assert found.noise_trace(8) == pytest.approx(32.0)


def test_a_split_that_is_not_estimable() -> None:
    assert split_noise([40.0], 1, [8.0], 8, 8.0) is None
    assert split_noise([8.0], 8, [8.0, 8.0], 8, 5.0) is None
    assert split_noise([8.0], 1, [8.0, 8.0], 1, 5.0) is None
