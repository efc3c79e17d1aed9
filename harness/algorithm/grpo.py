"""GRPO (Shao et al. 2402.03300) from its configuration: one place that picks the pure functions."""

from __future__ import annotations

import numpy as np

from harness.algorithm.advantages import group_relative
from harness.algorithm.losses import ClippedPolicyLoss, loss_weights
from harness.config import GrpoConfig


class Grpo:
    """Group-relative advantages with the clipped surrogate, in a single pass."""

    def __init__(self, config: GrpoConfig) -> None:
        self.config = config
        self.loss = ClippedPolicyLoss(config.clip_low, config.clip_high, config.kl_coef)

    @property
    def needs_reference(self) -> bool:
        return self.config.kl_coef > 0

    def advantages(self, rewards_PG: np.ndarray) -> np.ndarray:
        """Advantage of each response, shape [P, G]."""
        config = self.config
        return group_relative(rewards_PG, config.advantage_std, config.std_ddof, config.std_epsilon)

    def loss_weights(self, lengths_S: np.ndarray) -> np.ndarray:
        """Weight of each token, shape [N], in one optimizer step over these responses."""
        return loss_weights(lengths_S, self.config.loss_average, self.config.constant_tokens)
