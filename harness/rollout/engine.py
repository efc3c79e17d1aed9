"""The seam to whatever samples responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from harness.memory import Room
from harness.rollout.occupancy import Occupancy
from harness.types import Prompt, Rollout, RolloutGroup


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn.

    Response r, token t of the prompt with index i uses the uniform of (seed, purpose, round, i, r, t),
    whatever else is in flight. After `num_sampled` sampled responses come `num_greedy` greedy ones. With `ignore_end`
    end tokens are drawn like all others and every response goes on to its longest.
    """

    temperature: float
    max_response_tokens: int
    seed: int
    purpose: str
    round: int = 0
    num_sampled: int = 1
    num_greedy: int = 0
    ignore_end: bool = False

    @property
    def num_responses(self) -> int:
        return self.num_sampled + self.num_greedy


@dataclass(frozen=True)
class Arrival:
    """A response that ended."""

    prompt_index: int
    prompt_ids_L: np.ndarray
    response: int
    rollout: Rollout


class OpenFlight(Protocol):
    """Responses that stay in flight between calls, and go on under whatever weights the engine has by then.

    What they have computed so far stays in the cache, under the weights of its time; log-probabilities are those of
    the distribution that each token was drawn from.
    """

    tokens_discarded: int

    @property
    def size(self) -> int:
        """Responses in flight."""

    def begin(self, prompts: Sequence[Prompt]) -> None:
        """Put every response to these prompts in flight."""

    def step(self) -> list[Arrival]:
        """At least one more token for each response in flight, if there is one; those that ended."""

    def restart(self) -> None:
        """Start everything in flight over from its first token, with the same draws; counts the tokens discarded."""


class RolloutEngine(Protocol):
    """Samples responses with the weights it was last given. `occupancy` is that of the last call of generate."""

    weights_version: int
    occupancy: Occupancy

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RolloutGroup]:
        """One group for each prompt, in order; log-probabilities are those of the tempered distribution.

        Of greedy responses, which nothing is trained on, they may be NaN.
        """

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Sample from these weights from now on. `weights` may go unread when the engine shares them already."""


class SteppingEngine(RolloutEngine, Protocol):
    """An engine in this process whose responses may stay in flight between calls."""

    def room(self) -> Room | None:
        """What it can hold by its own account; None where it takes memory as it goes."""

    def open_flight(self, sampling: Sampling, capacity: int) -> OpenFlight:
        """Room for `capacity` responses that are drawn like this. Other calls may come between its steps."""
