"""The seam to whatever turns a batch into an optimizer step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from harness.types import NoiseProbe, TokenBatch, TrainBatch, UpdateStats


class Diverged(Exception):
    """The loss or the gradient is no longer finite: the end of a trial, and data for the study."""


@dataclass(frozen=True)
class TokenTensors:
    """The response tokens of one micro-batch as a loss sees them: whole responses, laid end to end.

    All of shape [N]; current_N carries the gradient. ref_N and proximal_N are None without such a policy.
    """

    current_N: torch.Tensor
    behaviour_N: torch.Tensor
    advantages_N: torch.Tensor
    ref_N: torch.Tensor | None
    lengths_S: torch.Tensor
    proximal_N: torch.Tensor | None = None


@dataclass(frozen=True)
class ValueTensors:
    """The values that a critic gives the response tokens of one micro-batch; values_N carries the gradient.

    V_t is the value before token t: of the prompt and the tokens of the response that precede it.
    """

    values_N: torch.Tensor
    rollout_values_N: torch.Tensor
    targets_N: torch.Tensor


@dataclass(frozen=True)
class TokenLoss:
    """Loss of each token [N], and diagnostics [N] that are averaged over the tokens of the optimizer step.

    Of a diagnostic whose name ends in _max the largest is kept.
    """

    loss_N: torch.Tensor
    diagnostics: Mapping[str, torch.Tensor]


class Loss(Protocol):
    """An algorithm's loss: a pure function of tensors."""

    def __call__(self, tokens: TokenTensors) -> TokenLoss: ...


class ValueLoss(Protocol):
    """The loss of a critic's values: a pure function of tensors."""

    def __call__(self, values: ValueTensors) -> TokenLoss: ...


class Trainer(Protocol):
    """Owns weights and optimizer; knows no algorithm."""

    def step(self, batch: TrainBatch, loss: Loss, lr: float, probe: NoiseProbe | None = None) -> UpdateStats:
        """One optimizer step on the whole batch. Raises Diverged, with the weights untouched, when it is not finite.

        A probe is answered by BlockNorms, unless the batch has no two equal blocks of whole groups.
        """

    def logprobs(self, batch: TokenBatch) -> list[Any]:
        """Log-probability of each response's tokens under the current weights, arrays [T]."""

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors for the engine."""

    def state(self) -> dict[str, Any]:
        """Everything a resumed trial needs to go on bit for bit."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a state() again."""


class Critic(Protocol):
    """A model of the value of each token, with its own optimizer."""

    def values(self, batch: TokenBatch) -> np.ndarray:
        """Value of each response token under the current weights, float array [N]."""

    def step(self, batch: TrainBatch, loss: ValueLoss, lr: float, probe: NoiseProbe | None = None) -> UpdateStats:
        """One optimizer step towards value_targets_N. Raises Diverged and answers a probe as a trainer does."""

    def state(self) -> dict[str, Any]:
        """Everything a resumed trial needs to go on bit for bit."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a state() again."""
