"""CISPO (MiniMax 2506.13585): clips the importance weight instead of the update of a token."""

from __future__ import annotations

from harness.algorithm.grpo import Grpo
from harness.algorithm.losses import ClippedWeightLoss
from harness.training.trainer import Loss


class Cispo(Grpo):
    """GRPO's advantages, each token's gradient times its clipped ratio (`ClippedWeightLoss`)."""

    @property
    def loss(self) -> Loss:
        return ClippedWeightLoss(self.config.clip_low, self.config.clip_high, self.config.kl_coef)
