"""RLOO (Kool et al. 2019; for language models Ahmadian et al. 2402.14740)."""

from __future__ import annotations

import numpy as np

from harness.algorithm.advantages import leave_one_out
from harness.algorithm.algorithm import Feedback, PolicyGradient
from harness.algorithm.config import RlooConfig


class Rloo(PolicyGradient[RlooConfig]):
    """Leave-one-out baseline, no std."""

    def advantages(self, feedback: Feedback) -> np.ndarray:
        return leave_one_out(feedback.rewards_PG)
