"""One micro-batch of an optimizer step: its forward pass, the loss of its tokens, and what is noted on the way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from harness.training.packing import chosen, pack_rows, token_logits
from harness.training.trainer import Loss, TokenLoss, TokenTensors, ValueLoss, ValueTensors
from harness.types import TokenBatch, TrainBatch


def policy_loss(
    model: PreTrainedModel, batch: TrainBatch, loss: Loss, temperature: float, longest_shared_row: int
) -> TokenLoss:
    """The loss of each response token under the model, with the diagnostics that every policy has."""
    logits_NV = token_logits(model, pack_rows(batch, longest_shared_row), temperature)
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    tokens = _tensors(batch, chosen(logprobs_NV, batch.token_ids_N))
    found = loss(tokens)
    gap_N = (tokens.current_N.detach() - tokens.behaviour_N).abs()
    diagnostics = {
        "policy/entropy": _entropy(logprobs_NV.detach()),
        "policy/logprob_gap_mean": gap_N,
        "policy/logprob_gap_max": gap_N,
    }
    return TokenLoss(found.loss_N, {**diagnostics, **found.diagnostics})


def value_loss(model: PreTrainedModel, batch: TrainBatch, loss: ValueLoss, longest_shared_row: int) -> TokenLoss:
    """The loss of the value of each response token."""
    values_N = token_values(model, batch, longest_shared_row)
    assert batch.rollout_values_N is not None and batch.value_targets_N is not None
    rollout_N, targets_N = (
        torch.from_numpy(array).to(values_N) for array in (batch.rollout_values_N, batch.value_targets_N)
    )
    return loss(ValueTensors(values_N, rollout_N, targets_N))


def token_values(model: PreTrainedModel, batch: TokenBatch, longest_shared_row: int) -> torch.Tensor:
    """Value of each response token, shape [N], under a model whose head gives one number."""
    return token_logits(model, pack_rows(batch, longest_shared_row), temperature=1.0)[:, 0]


class StepSums:
    """Loss and diagnostics of one optimizer step over `num_tokens` tokens, micro-batch by micro-batch.

    Diagnostics are averaged over the tokens of the step; of those whose name ends in _max the largest is kept.

    >>> sums = StepSums(num_tokens=4)
    >>> sums.add(0.5, {"clip_frac": torch.tensor([1.0]), "gap_max": torch.tensor([2.0])})
    >>> sums.add(0.25, {"clip_frac": torch.tensor([0.0, 1.0, 0.0]), "gap_max": torch.tensor([0.0, 3.0, 1.0])})
    >>> sums.loss, {name: round(value, 6) for name, value in sums.metrics.items()}
    (0.75, {'clip_frac': 0.5, 'gap_max': 3.0})
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.loss = 0.0
        self.metrics: dict[str, float] = {}

    def add(self, loss: float, diagnostics: Mapping[str, torch.Tensor]) -> None:
        """Take in a micro-batch: its share of the loss, and diagnostics of its tokens."""
        self.loss += loss
        for name, value_N in diagnostics.items():
            if name.endswith("_max"):
                self.metrics[name] = max(self.metrics.get(name, -np.inf), value_N.max().item())
            else:
                share = len(value_N) / self.num_tokens
                self.metrics[name] = self.metrics.get(name, 0.0) + share * value_N.mean().item()


def _tensors(batch: TrainBatch, current_N: torch.Tensor) -> TokenTensors:
    def like_current(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(current_N)

    ref, proximal = batch.ref_logprobs_N, batch.proximal_logprobs_N
    return TokenTensors(
        current_N=current_N,
        behaviour_N=like_current(batch.behaviour_logprobs_N),
        advantages_N=like_current(batch.advantages_N),
        ref_N=None if ref is None else like_current(ref),
        lengths_S=torch.from_numpy(batch.lengths_S).to(current_N.device),
        proximal_N=None if proximal is None else like_current(proximal),
    )


def _entropy(logprobs_NV: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of the tempered next-token distribution, shape [N]."""
    return -(logprobs_NV.exp() * logprobs_NV).sum(-1)
