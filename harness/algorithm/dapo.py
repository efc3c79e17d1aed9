"""DAPO (Yu et al. 2503.14476): a clip that is wider above, a mean over tokens, and dynamic sampling."""

from __future__ import annotations

from dataclasses import replace

from harness.algorithm.algorithm import Needs
from harness.algorithm.config import DapoConfig
from harness.algorithm.grpo import Grpo


class Dapo(Grpo):
    """GRPO's advantages clipped at 1 - 0.2 and 1 + 0.28, on groups whose rewards are not all equal.

    The publication refills without a limit; here the rounds are bounded. Dropped responses count as generated only.
    """

    config: DapoConfig

    @property
    def needs(self) -> Needs:
        return replace(super().needs, refill_rounds=self.config.refill_rounds if self.config.dynamic_sampling else None)
