"""REINFORCE (Williams 1992) with a moving average of the rewards as baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.algorithm.algorithm import Feedback, PolicyGradient
from harness.algorithm.config import ReinforceConfig
from harness.algorithm.moving import MovingBaseline


class Reinforce(PolicyGradient[ReinforceConfig]):
    """A = r - moving average of the rewards before it (`MovingBaseline`), with the clipped surrogate.

    The average decays by the sample. With one step a rollout batch the clip never binds.
    """

    def __init__(self, config: ReinforceConfig) -> None:
        super().__init__(config)
        self.baseline = MovingBaseline(config.baseline_samples)

    def advantages(self, feedback: Feedback) -> np.ndarray:
        rewards_PG = feedback.rewards_PG
        return rewards_PG - self.baseline.baselines(rewards_PG.reshape(-1)).reshape(rewards_PG.shape)

    def state(self) -> dict[str, Any]:
        return self.baseline.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.baseline.load_state(state)
