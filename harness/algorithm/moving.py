"""Averages over the samples of a trial that decay by the sample, so that no batch shows in them.

A decay by the update would look back over more samples the larger the batch is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class MovingBaseline:
    """Exponentially weighted mean of the rewards of all earlier samples.

        before sample i:  b_i = m_i / w_i  (0 before the first);   then  m = d m + r_i,  w = d w + 1,  d = 1 - 1/window

    The baseline of a sample holds the rewards that come before it in the prompt stream, those of its own batch
    included, and never its own: it adds no bias, and N samples give the same baselines in one batch or in many.
    """

    def __init__(self, window_samples: float) -> None:
        self.decay = 1.0 - 1.0 / window_samples
        self.total, self.weight = 0.0, 0.0

    def baselines(self, rewards_S: np.ndarray) -> np.ndarray:
        """Baseline of each sample, shape [S]; its reward is taken up after it.

        >>> moving = MovingBaseline(window_samples=2)
        >>> moving.baselines(np.array([1.0, 0.0, 1.0]))  # 0;  1/1;  (1/2 * 1 + 0) / (1/2 + 1)
        array([0.        , 1.        , 0.33333333])
        >>> moving.baselines(np.array([0.0]))  # (1/4 * 1 + 1) / (1/4 + 1/2 + 1)
        array([0.71428571])
        """
        baselines_S = np.zeros(len(rewards_S))
        for i, reward in enumerate(rewards_S.tolist()):
            baselines_S[i] = self.total / self.weight if self.weight else 0.0
            self.total = self.decay * self.total + reward
            self.weight = self.decay * self.weight + 1.0
        return baselines_S

    def state(self) -> dict[str, float]:
        """What a resumed trial needs."""
        return {"total": self.total, "weight": self.weight}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Take up a state() again."""
        self.total, self.weight = state["total"], state["weight"]


class MovingMoments:
    """Exponentially weighted mean and standard deviation of what tokens carry (Hilton et al. 2110.00641, section 4).

    A token weighs d^k, d = 1 - 1/window, where k samples came after its own. The variance is the weighted mean of
    squares less the squared mean (n in the denominator).
    """

    def __init__(self, window_samples: float) -> None:
        self.decay = 1.0 - 1.0 / window_samples
        self.weight, self.total, self.total_sq = 0.0, 0.0, 0.0

    def normalise(self, values_N: np.ndarray, lengths_S: np.ndarray) -> np.ndarray:
        """(x - mean) / std with the moments that include these samples; without spread only shifted.

        >>> moving = MovingMoments(window_samples=2)
        >>> moving.normalise(np.array([0.0, 4.0]), np.array([2]))  # one response of two tokens
        array([-1.,  1.])
        >>> moving.normalise(np.array([0.0]), np.array([1]))  # weights 1/2, 1/2, 1: mean 1, variance 8/2 - 1 = 3
        array([-0.57735027])
        """
        after_S = np.arange(len(lengths_S))[::-1]
        weights_N = np.repeat(self.decay**after_S, lengths_S)
        kept = self.decay ** len(lengths_S)
        self.weight = kept * self.weight + float(weights_N.sum())
        self.total = kept * self.total + float((weights_N * values_N).sum())
        self.total_sq = kept * self.total_sq + float((weights_N * values_N**2).sum())
        mean = self.total / self.weight
        variance = self.total_sq / self.weight - mean**2
        # Below this the difference of two nearly equal squares is rounding, not spread.
        has_spread = variance > 1e-12 * mean**2
        return (values_N - mean) / np.sqrt(variance) if has_spread else values_N - mean

    def state(self) -> dict[str, float]:
        """What a resumed trial needs."""
        return {"weight": self.weight, "total": self.total, "total_sq": self.total_sq}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Take up a state() again."""
        self.weight, self.total, self.total_sq = state["weight"], state["total"], state["total_sq"]
