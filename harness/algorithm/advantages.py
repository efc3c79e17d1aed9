"""Advantages: how much better than its baseline each response, or each token, was. Arrays in, arrays out."""

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
    >>> group_relative(np.array([[1.0, 0.0, 0.0, 1.0]]), std="none")
    array([[ 0.5, -0.5, -0.5,  0.5]])
    """
    _require_groups(rewards_PG)
    rewards_PG = rewards_PG.astype(np.float64)
    centred_PG = rewards_PG - rewards_PG.mean(axis=1, keepdims=True)
    equal_P1 = zero_variance(rewards_PG)[:, None]
    scale_P1 = rewards_PG.std(axis=1, ddof=ddof, keepdims=True) + epsilon if std == "std" else 1.0
    return np.where(equal_P1, 0.0, centred_PG / np.where(equal_P1, 1.0, scale_P1))


def leave_one_out(rewards_PG: np.ndarray) -> np.ndarray:
    """RLOO's advantage (Kool et al. 2019; Ahmadian et al. 2402.14740), shape [P, G].

        A_i = r_i - mean of the other G - 1 rewards = G / (G - 1) * (r_i - mean_G(r))

    The baseline does not contain the own reward, so it adds no bias. A group of equal rewards gets exactly 0.
    Raises ValueError for a group of one.

    >>> leave_one_out(np.array([[1.0, 0.0, 0.0, 0.5]]))
    array([[ 0.83333333, -0.5       , -0.5       ,  0.16666667]])
    """
    _require_groups(rewards_PG)
    size = rewards_PG.shape[1]
    return group_relative(rewards_PG, std="none") * (size / (size - 1))


def against_greedy(rewards_PG: np.ndarray, greedy_rewards_P: np.ndarray) -> np.ndarray:
    """ReMax's advantage (Li et al. 2310.10505), shape [P, G]: A = r - reward of the greedy response to the prompt.

    A group of one is fine. Greedy responses are generated, not trained on.

    >>> against_greedy(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([1.0, 0.25]))
    array([[ 0.  , -1.  ],
           [ 0.75, -0.25]])
    """
    return rewards_PG.astype(np.float64) - greedy_rewards_P[:, None]


def gae(
    rewards_N: np.ndarray, values_N: np.ndarray, lengths_S: np.ndarray, gamma: float = 1.0, lam: float = 0.95
) -> np.ndarray:
    """Generalised advantage estimates of each token (Schulman et al. 1506.02438, eq. 16), shape [N].

        delta_t = r_t + gamma * V_{t+1} - V_t,        A_t = sum_k (gamma * lam)^k * delta_{t+k}

    within each response; V after its last token is 0, whether it ended or was cut at the length limit. The value
    targets are A + V.

    >>> gae(np.array([0.0, 0.0, 1.0]), np.full(3, 0.5), np.array([3]))
    array([0.45125, 0.475  , 0.5    ])
    """
    filled_ST = np.arange(lengths_S.max()) < lengths_S[:, None]
    rewards_ST, values_ST = np.zeros(filled_ST.shape), np.zeros(filled_ST.shape)
    rewards_ST[filled_ST], values_ST[filled_ST] = rewards_N, values_N
    advantages_ST = np.zeros(filled_ST.shape)
    # Behind the end rewards and values are 0, so the sums start there without a mask.
    value_S = advantage_S = np.zeros(len(lengths_S))
    for t in reversed(range(filled_ST.shape[1])):
        delta_S = rewards_ST[:, t] + gamma * value_S - values_ST[:, t]
        advantage_S = delta_S + gamma * lam * advantage_S
        value_S = values_ST[:, t]
        advantages_ST[:, t] = advantage_S
    return advantages_ST[filled_ST]


def on_last_token(rewards_S: np.ndarray, lengths_S: np.ndarray) -> np.ndarray:
    """Rewards of whole responses as rewards of tokens, shape [N]: on the last generated one, the end token included.

    >>> on_last_token(np.array([1.0, 0.5]), np.array([3, 1]))
    array([0. , 0. , 1. , 0.5])
    """
    rewards_N = np.zeros(int(lengths_S.sum()))
    rewards_N[np.cumsum(lengths_S) - 1] = rewards_S
    return rewards_N


def whiten(values_N: np.ndarray, shift_mean: bool = True) -> np.ndarray:
    """Values with unit standard deviation (n in the denominator) and, unless told otherwise, zero mean.

        (x - mean(x)) / std(x)      or x / std(x)

    All N values together, before any split into optimizer steps. Equal values are shifted but not scaled.

    >>> whiten(np.array([0.0, 4.0])), whiten(np.array([0.0, 4.0]), shift_mean=False)
    (array([-1.,  1.]), array([0., 2.]))
    """
    equal = values_N.max() == values_N.min()
    shifted_N = values_N - (values_N[0] if equal else values_N.mean()) if shift_mean else values_N
    return shifted_N if equal else shifted_N / values_N.std()


def explained_variance(values_N: np.ndarray, targets_N: np.ndarray) -> float | None:
    """1 - Var(target - value) / Var(target) over tokens: 1 for a critic that knows, 0 for a constant one.

    None where all targets are equal.

    >>> explained_variance(np.array([0.0, 0.0]), np.array([0.0, 1.0]))
    0.0
    >>> explained_variance(np.array([0.25, 0.75]), np.array([0.0, 1.0]))
    0.75
    """
    if targets_N.max() == targets_N.min():
        return None
    return float(1 - np.var(targets_N - values_N) / np.var(targets_N))


def zero_variance(rewards_PG: np.ndarray) -> np.ndarray:
    """Which groups (boolean [P]) hold one reward only, and so carry no signal.

    >>> zero_variance(np.array([[0.35] * 7, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]))
    array([ True, False])
    """
    return rewards_PG.max(axis=1) == rewards_PG.min(axis=1)


def _require_groups(rewards_PG: np.ndarray) -> None:
    if rewards_PG.shape[1] < 2:
        raise ValueError("a group of one response has no group baseline: group_size must be at least 2")
