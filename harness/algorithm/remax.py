"""ReMax (Li et al. 2310.10505)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.algorithm.advantages import against_greedy
from harness.algorithm.algorithm import Feedback, Needs, PolicyGradient
from harness.algorithm.config import RemaxConfig


class Remax(PolicyGradient[RemaxConfig]):
    """A = r - reward of the greedy response (`against_greedy`), with the clipped surrogate (`ClippedPolicyLoss`).

    The greedy response is generated and scored, not trained on. With one step a rollout batch the clip never binds.
    """

    @property
    def needs(self) -> Needs:
        return replace(super().needs, greedy_responses=1)

    def advantages(self, feedback: Feedback) -> np.ndarray:
        assert feedback.greedy_rewards_P is not None
        return against_greedy(feedback.rewards_PG, feedback.greedy_rewards_P)
