"""RLOO (Kool et al. 2019; for language models Ahmadian et al. 2402.14740)."""

from __future__ import annotations

import numpy as np

from harness.algorithm.advantages import leave_one_out
from harness.algorithm.algorithm import Feedback, PolicyGradient
from harness.algorithm.config import RlooConfig


class Rloo(PolicyGradient[RlooConfig]):
    """A = r - mean of the others' rewards (`leave_one_out`), no std, with the clipped surrogate (`ClippedPolicyLoss`).

    With one step a rollout batch the clip never binds and this is the publication's estimator.
    """

    def advantages(self, feedback: Feedback) -> np.ndarray:
        return leave_one_out(feedback.rewards_PG)
