"""Signal and noise of a policy gradient from squared norms of its parts. Pure functions of numbers.

A response s contributes u_s to the gradient: the gradient of a part of the batch is the mean of u_s over its responses,
with the denominators of the whole optimizer step, so that the batch's gradient is the mean of those of equal parts.
Responses to one prompt share it and often a baseline: the exchangeable unit is the *group*, and a part is whole groups
wherever it does not say otherwise. Squared norms are those before clipping, all in the same unit.

Every estimate is unbiased, hence may be negative where noise is large, and none is worth much alone. Average signal
and noise over updates, separately, before dividing (`noise_scale`). None means "not estimable".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class SignalNoise:
    """|G|^2 of the expected gradient G and tr(S), the noise of one response: E|g|^2 = signal_sq + noise_trace / B."""

    signal_sq: float
    noise_trace: float


@dataclass(frozen=True)
class NoiseSplit:
    """The noise of P prompts with G responses: E|g|^2 = signal_sq + between_trace / P + within_trace / (P G).

    between_trace is that of the covariance, over prompts, of a prompt's expected gradient; within_trace that of a
    response about it.
    """

    signal_sq: float
    between_trace: float
    within_trace: float

    def noise_trace(self, group_size: int) -> float:
        """tr(S) of one response, tr(S)/(P G) being the noise of the batch: G * between_trace + within_trace.

        >>> NoiseSplit(signal_sq=1.0, between_trace=2.0, within_trace=24.0).noise_trace(8)
        40.0
        """
        return group_size * self.between_trace + self.within_trace


def signal_and_noise(
    part_norms_sq_K: ArrayLike, part_responses: int, norm_sq: float, num_responses: int
) -> SignalNoise | None:
    """|G|^2 and tr(S) from parts of b = part_responses responses and the whole of B = num_responses.

    part_norms_sq_K: squared norms of the gradients of K parts of equal size, or one mean of such. E|g_b|^2 =
    |G|^2 + tr(S)/b at both sizes (McCandlish et al., 1812.06162, appendix A.1), hence with a bar for the mean over K

        |G|^2 = (B |g_B|^2 - b bar|g_b|^2) / (B - b)        tr(S) = (bar|g_b|^2 - |g_B|^2) / (1/b - 1/B)

    None without two sizes: b >= B, or no part.

    >>> signal_and_noise([4.0, 6.0], 8, 2.0, 32)
    SignalNoise(signal_sq=1.0, noise_trace=32.0)
    >>> round(signal_and_noise([5.0], 8, 1.0, 32).signal_sq, 4)  # negative: more updates are needed
    -0.3333
    >>> signal_and_noise([5.0], 32, 5.0, 32) is None
    True
    """
    parts_K = np.atleast_1d(np.asarray(part_norms_sq_K, dtype=float))
    small, large = part_responses, num_responses
    if small >= large or parts_K.size == 0:
        return None
    mean_sq = float(parts_K.mean())
    return SignalNoise(
        signal_sq=(large * norm_sq - small * mean_sq) / (large - small),
        noise_trace=(mean_sq - norm_sq) / (1 / small - 1 / large),
    )


def noise_scale(signal_sq_U: ArrayLike, noise_trace_U: ArrayLike) -> float | None:
    """B_noise = mean tr(S) / mean |G|^2 in responses, over U updates; None where the mean |G|^2 is not positive.

    The ratio of single estimates would be badly biased.

    >>> noise_scale([3.0, -1.0], [40.0, 24.0])
    32.0
    >>> noise_scale([-1 / 3], [42.7]) is None, noise_scale([], []) is None
    (True, True)
    """
    signal_U, noise_U = np.asarray(signal_sq_U, dtype=float), np.asarray(noise_trace_U, dtype=float)
    if signal_U.size == 0 or signal_U.mean() <= 0:
        return None
    return float(noise_U.mean() / signal_U.mean())


def split_noise(
    subgroup_norms_sq: ArrayLike,
    subgroup_size: int,
    group_norms_sq_P: ArrayLike,
    group_size: int,
    norm_sq: float,
    shared_baseline: bool = False,
) -> NoiseSplit | None:
    """The noise between prompts and within them, from squared norms at three sizes.

    subgroup_norms_sq: of the gradients of equal parts of a group, m = subgroup_size responses each (1: single
    responses; G/2: halves), any shape. group_norms_sq_P: of the P groups of G responses, all of them. norm_sq: of the
    batch. With q, h, n for their means, C for the mean of <u_s, u_t> over two responses to one prompt, V for that of
    |u_s|^2, and mu for the expected gradient of a prompt, whose mean is the signal G and whose variance is I:

        E q = C + (V - C)/m     E h = C + (V - C)/G     E n = |G|^2 + (E h - |G|^2)/P

    since two responses to different prompts are independent. These give V - C = (q - h) / (1/m - 1/G),
    |G|^2 = (P n - h) / (P - 1), and C = h - (V - C)/G. What remains is what C says about E|mu|^2 = |G|^2 + I.

    - Responses independent given the prompt (no baseline, or one that does not look at them): C = E|mu|^2.
    - shared_baseline: leave-one-out, u_s = (r_s - mean of the other rewards) * score_s. Scores have mean 0 given the
      prompt, so of the products in <u_s, u_t> only those with both own rewards, or with each other's, remain:
      C = E|mu|^2 * (1 + 1/(G - 1)^2). The factor is 2 at G = 2 and 1.02 at G = 8. The group mean as baseline gives
      1 - 1/G times these u_s, and all three results times its square. Exact on policy, with the mean over responses
      and without the group's std; dividing by it couples the responses in a way that has no such formula.

    Then between_trace = I = E|mu|^2 - |G|^2 and within_trace = G (h - E|mu|^2), so that n has the expectation that
    NoiseSplit says. None without two groups, or without two equal parts in a group.

    Halves of 4 with q = 12, groups of 8 with h = 8, 4 groups with n = 5: V - C = 4/(1/4 - 1/8) = 32,
    |G|^2 = (20 - 8)/3 = 4, C = 8 - 32/8 = 4, so that nothing is left between prompts.

    >>> split_noise([12.0, 12.0], 4, [8.0, 8.0, 8.0, 8.0], 8, 5.0)
    NoiseSplit(signal_sq=4.0, between_trace=0.0, within_trace=32.0)
    >>> split_noise([12.0], 8, [8.0, 8.0], 8, 5.0) is None, split_noise([12.0], 4, [8.0], 8, 8.0) is None
    (True, True)
    """
    groups_P = np.asarray(group_norms_sq_P, dtype=float)
    if groups_P.size < 2 or subgroup_size >= group_size:
        return None
    group_sq = float(groups_P.mean())
    spread = (float(np.asarray(subgroup_norms_sq, dtype=float).mean()) - group_sq) / (
        1 / subgroup_size - 1 / group_size
    )
    signal_sq = (groups_P.size * norm_sq - group_sq) / (groups_P.size - 1)
    return _split(signal_sq, group_sq, spread, group_size, shared_baseline)


def split_by_contrast(
    found: SignalNoise, contrast_sq: float, num_responses: int, group_size: int, shared_baseline: bool = False
) -> NoiseSplit:
    """The same as split_noise from |G|^2 and tr(S), and one gradient of whole groups with signs on their responses.

    contrast_sq: squared norm of the mean of e_s u_s over num_responses responses, where half of the responses of each
    group, drawn at random for each alone, have the sign e_s = -1 and the others 1. Two such signs of one group have
    the mean product -1/(G - 1), of two groups 0, hence with the letters of split_noise, n being num_responses,

        E contrast = (V - C) / n        E h = |G|^2 + tr(S) / G

    >>> split_by_contrast(SignalNoise(signal_sq=4.0, noise_trace=32.0), 1.0, num_responses=32, group_size=8)
    NoiseSplit(signal_sq=4.0, between_trace=0.0, within_trace=32.0)
    """
    group_sq = found.signal_sq + found.noise_trace / group_size
    return _split(found.signal_sq, group_sq, num_responses * contrast_sq, group_size, shared_baseline)


def _split(signal_sq: float, group_sq: float, spread: float, group_size: int, shared_baseline: bool) -> NoiseSplit:
    """From |G|^2, the mean squared norm of a group, and V - C (see split_noise)."""
    pair_product = group_sq - spread / group_size
    prompt_sq = pair_product / (1 + 1 / (group_size - 1) ** 2) if shared_baseline else pair_product
    return NoiseSplit(signal_sq, prompt_sq - signal_sq, group_size * (group_sq - prompt_sq))
