"""The seam to whatever samples responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from harness.types import Prompt, RolloutGroup


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn.

    Response r, token t of the prompt with index i uses the uniform of (seed, purpose, round, i, r, t),
    whatever else is in flight. After `num_sampled` sampled responses come `num_greedy` greedy ones.
    """

    temperature: float
    max_response_tokens: int
    seed: int
    purpose: str
    round: int = 0
    num_sampled: int = 1
    num_greedy: int = 0

    @property
    def num_responses(self) -> int:
        return self.num_sampled + self.num_greedy


class RolloutEngine(Protocol):
    """Samples responses with the weights it was last given."""

    weights_version: int

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RolloutGroup]:
        """One group for each prompt, in order; log-probabilities are those of the tempered distribution."""

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Sample from these weights from now on. `weights` may go unread when the engine shares them already."""
