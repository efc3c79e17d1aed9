"""Responses that stay in flight in a vLLM engine between calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.rollout.engine import Arrival, Sampling
from harness.types import Prompt

if TYPE_CHECKING:
    from harness.rollout.vllm import VllmEngine


@dataclass(frozen=True)
class Response:
    """Which response to which prompt."""

    prompt: Prompt
    prompt_ids_L: np.ndarray
    number: int


class VllmFlight:
    """See OpenFlight. Responses beyond the engine's room wait in its queue; vLLM says which weights sampled a token."""

    def __init__(self, engine: VllmEngine, sampling: Sampling) -> None:
        self.engine = engine
        self.sampling = sampling
        self.open: dict[str, Response] = {}
        self.tokens_discarded = 0

    @property
    def size(self) -> int:
        return len(self.open)

    def begin(self, prompts: Sequence[Prompt]) -> None:
        self.open |= self.engine.submit(self.engine.all_responses(prompts, self.sampling), self.sampling)

    def step(self) -> list[Arrival]:
        if not self._ended():  # another call may have moved them on
            self.engine.step()
        arrivals = []
        for key in self._ended():
            response = self.open.pop(key)
            rollout = self.engine.take(key, response, self.sampling)
            arrivals.append(Arrival(response.prompt.index, response.prompt_ids_L, response.number, rollout))
        return arrivals

    def restart(self) -> None:
        keys = [key for key in self.open if key not in self.engine.ended]
        self.tokens_discarded += self.engine.abort(keys)
        self.open |= self.engine.submit([self.open.pop(key) for key in keys], self.sampling)

    def _ended(self) -> list[str]:
        return [key for key in self.engine.ended if key in self.open]
