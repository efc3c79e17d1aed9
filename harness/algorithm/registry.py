"""The algorithms by the name that a configuration gives them."""

from __future__ import annotations

from typing import Any

from harness.algorithm.algorithm import Algorithm
from harness.algorithm.cispo import Cispo
from harness.algorithm.config import AlgorithmConfig
from harness.algorithm.dapo import Dapo
from harness.algorithm.dr_grpo import DrGrpo
from harness.algorithm.grpo import Grpo
from harness.algorithm.gspo import Gspo
from harness.algorithm.ppo import Ppo
from harness.algorithm.ppo_ewma import PpoEwma
from harness.algorithm.reinforce import Reinforce
from harness.algorithm.remax import Remax
from harness.algorithm.rloo import Rloo

# A new algorithm adds its class here, and its configuration to AlgorithmConfig.
ALGORITHMS: dict[str, Any] = {
    "grpo": Grpo,
    "dr_grpo": DrGrpo,
    "dapo": Dapo,
    "gspo": Gspo,
    "cispo": Cispo,
    "rloo": Rloo,
    "remax": Remax,
    "reinforce": Reinforce,
    "ppo": Ppo,
    "ppo_ewma": PpoEwma,
}


def make_algorithm(config: AlgorithmConfig) -> Algorithm:
    """The algorithm that `config` names, with its memory empty."""
    algorithm: Algorithm = ALGORITHMS[config.name](config)
    return algorithm
