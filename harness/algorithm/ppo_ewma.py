"""PPO-EWMA (Hilton et al. 2110.00641): what PPO takes from its batch, taken from a window in samples instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from harness.algorithm.algorithm import Needs
from harness.algorithm.config import PpoEwmaConfig
from harness.algorithm.losses import DecoupledPolicyLoss
from harness.algorithm.moving import MovingMoments
from harness.algorithm.ppo import ActorCritic
from harness.training.trainer import Loss


class PpoEwma(ActorCritic[PpoEwmaConfig]):
    """A trust region around a moving average of the policy (`DecoupledPolicyLoss`), moving moments (`MovingMoments`).

    The publication keeps both windows in optimizer steps and multiplies them by c when the batch is divided by c; in
    samples they stay as they are. The average moves once a rollout batch, and is fixed within it.
    """

    def __init__(self, config: PpoEwmaConfig) -> None:
        super().__init__(config)
        self.moments = MovingMoments(config.moments_samples)

    @property
    def needs(self) -> Needs:
        return replace(super().needs, proximal_samples=self.config.proximal_samples)

    @property
    def loss(self) -> Loss:
        return DecoupledPolicyLoss(self.config.clip_low, self.config.clip_high, self.config.kl_coef)

    def whitened(self, advantages_N: np.ndarray, lengths_S: np.ndarray) -> np.ndarray:
        return self.moments.normalise(advantages_N, lengths_S)

    def state(self) -> dict[str, Any]:
        return self.moments.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.moments.load_state(state)
