"""GRPO (Shao et al. 2402.03300)."""

from __future__ import annotations

import numpy as np

from harness.algorithm.advantages import group_relative
from harness.algorithm.algorithm import Feedback, PolicyGradient
from harness.algorithm.config import GroupConfig


class Grpo(PolicyGradient[GroupConfig]):
    """A = (r - mean_G(r)) / (std_G(r) + epsilon) (`group_relative`) with the surrogate `ClippedPolicyLoss`."""

    def advantages(self, feedback: Feedback) -> np.ndarray:
        config = self.config
        return group_relative(feedback.rewards_PG, config.advantage_std, config.std_ddof, config.std_epsilon)
