"""Advantages: how much better than its baseline each response was. Arrays in, arrays out."""

from __future__ import annotations

from typing import Literal

import numpy as np


def group_relative(
    rewards_PG: np.ndarray, std: Literal["std", "none"] = "std", ddof: int = 1, epsilon: float = 1e-6
) -> np.ndarray:
    """GRPO's advantage (Shao et al. 2402.03300, eq. for outcome supervision), shape [P, G].

        A = (r - mean_G(r)) / (std_G(r) + epsilon)      or without the division (Dr. GRPO, Liu et al. 2503.20783)

    Publications differ in the divisor of the variance (G - ddof) and in epsilon: both are arguments.
    A group whose rewards are all equal gets exactly 0, without a residue of rounding. Raises
    ValueError for a group of one, which has no baseline.

    >>> group_relative(np.array([[1.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]]), ddof=0, epsilon=0.0)
    array([[ 1., -1., -1.,  1.],
           [ 0.,  0.,  0.,  0.]])
    """
    if rewards_PG.shape[1] < 2:
        raise ValueError("a group of one response has no group baseline: group_size must be at least 2")
    rewards_PG = rewards_PG.astype(np.float64)
    centred_PG = rewards_PG - rewards_PG.mean(axis=1, keepdims=True)
    equal_P1 = zero_variance(rewards_PG)[:, None]
    scale_P1 = rewards_PG.std(axis=1, ddof=ddof, keepdims=True) + epsilon if std == "std" else 1.0
    return np.where(equal_P1, 0.0, centred_PG / np.where(equal_P1, 1.0, scale_P1))


def zero_variance(rewards_PG: np.ndarray) -> np.ndarray:
    """Which groups (boolean [P]) hold one reward only, and so carry no signal.

    >>> zero_variance(np.array([[0.35] * 7, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]))
    array([ True, False])
    """
    return rewards_PG.max(axis=1) == rewards_PG.min(axis=1)
