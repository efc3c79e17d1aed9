"""The critic: a second model of the same architecture whose head gives one number, the value of what comes next."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from harness.config import OptimizerConfig
from harness.training.batch import split_batch
from harness.training.forward import token_values, value_loss
from harness.training.torch import TorchModule
from harness.training.trainer import TokenLoss, ValueLoss
from harness.types import NoiseProbe, TokenBatch, TrainBatch, UpdateStats


class TorchCritic(TorchModule):
    """Values of response tokens through the same packed rows as their log-probabilities, a prompt computed once.

    The value of token t is read where t is predicted, so it knows the prompt and the tokens before t. The head of
    `policy`, a language model of its own that nothing else uses, is replaced by one with zero weights: all values
    start at 0.
    """

    def __init__(
        self, policy: PreTrainedModel, optimizer: OptimizerConfig, micro: int, longest_shared_row: int
    ) -> None:
        super().__init__(with_value_head(policy), optimizer, micro, longest_shared_row, role="critic")

    @torch.inference_mode()
    def values(self, batch: TokenBatch) -> np.ndarray:
        parts = split_batch(batch, self.micro)
        return np.concatenate(
            [token_values(self.model, part, self.longest_shared_row).numpy(force=True) for part in parts]
        )

    def step(self, batch: TrainBatch, loss: ValueLoss, lr: float, probe: NoiseProbe | None = None) -> UpdateStats:
        def loss_of(part: TrainBatch) -> TokenLoss:
            return value_loss(self.model, part, loss, self.longest_shared_row)

        return self._optimize(batch, loss_of, lr, probe)


def with_value_head(model: PreTrainedModel) -> PreTrainedModel:
    """The model with a head of one output, weights and bias zero, instead of one for each token."""
    old = model.get_output_embeddings()
    head = torch.nn.Linear(old.in_features, 1, device=old.weight.device, dtype=old.weight.dtype)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    model.set_output_embeddings(head)
    return model
