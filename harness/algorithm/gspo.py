"""GSPO (Zheng et al. 2507.18071): the ratio, and so the clip, belongs to the whole response."""

from __future__ import annotations

from harness.algorithm.grpo import Grpo
from harness.algorithm.losses import SequencePolicyLoss
from harness.training.trainer import Loss


class Gspo(Grpo):
    """GRPO's advantages with the ratio exp(mean_t(current - behaviour)) of a response (`SequencePolicyLoss`)."""

    @property
    def loss(self) -> Loss:
        return SequencePolicyLoss(self.config.clip_low, self.config.clip_high, self.config.kl_coef)
