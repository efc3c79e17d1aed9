"""The reference trainer: one process, one optimizer, micro-batches with global denominators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from harness.config import OptimizerConfig
from harness.training.batch import split_batch
from harness.training.blocks import Blocks, block_size
from harness.training.forward import StepSums, policy_loss
from harness.training.packing import response_logprobs
from harness.training.trainer import Diverged, Loss, TokenLoss
from harness.types import NoiseProbe, TokenBatch, TrainBatch, UpdateStats


def make_optimizer(parameters: Sequence[torch.nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Adam or AdamW as the configuration says."""
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.name]
    return kind(
        parameters,
        lr=config.lr,
        betas=(config.betas[0], config.betas[1]),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def ruled_by_epsilon(optimizer: torch.optim.Optimizer) -> int:
    """Coordinates where epsilon is over a tenth of sqrt(v_hat), so that it decides on Adam's step."""
    group, small = optimizer.param_groups[0], 0
    for state in optimizer.state.values():
        v_hat = state["exp_avg_sq"] / (1 - group["betas"][1] ** state["step"].item())
        small += int((v_hat.sqrt() < 10 * group["eps"]).sum())
    return small


class TorchModule:
    """A transformers model with its Adam or AdamW, and one optimizer step on whatever loss its tokens have.

    `micro` is the number of responses of one backward pass, `role` the name of the model in the metrics.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: OptimizerConfig,
        micro: int,
        longest_shared_row: int,
        role: Literal["actor", "critic"],
    ) -> None:
        self.model = model
        self.micro = micro
        self.longest_shared_row = longest_shared_row
        self.role = role
        self.clip_norm = optimizer.clip_norm
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = make_optimizer(self.parameters, optimizer)

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _optimize(
        self,
        batch: TrainBatch,
        loss_of: Callable[[TrainBatch], TokenLoss],
        lr: float,
        probe: NoiseProbe | None = None,
    ) -> UpdateStats:
        """One optimizer step on sum_n loss_weights_N[n] * loss_N[n], accumulated over micro-batches."""
        sums = StepSums(len(batch.token_ids_N))
        size = self.micro if probe is None else block_size(batch, self.micro)
        blocks = None if probe is None or size is None else Blocks(self.parameters, batch.num_responses, size)
        parts = list(split_batch(batch, size or self.micro))
        for number, part in enumerate(parts):
            token_loss = loss_of(part)
            weighted_N = token_loss.loss_N * torch.from_numpy(part.loss_weights_N).to(token_loss.loss_N)
            if blocks is not None and probe is not None and probe.signs_S is not None and number == 0:
                blocks.measure_signed(weighted_N, np.repeat(probe.signs_S[:size], part.lengths_S))
            part_loss = weighted_N.sum()
            part_loss.backward()
            if blocks is not None:
                blocks.take()
            sums.add(part_loss.item(), token_loss.diagnostics)
        found = None if blocks is None else blocks.give_back()
        before = None if probe is None else [parameter.detach().clone() for parameter in self.parameters]
        norm = self._apply(sums.loss, lr)
        metrics = sums.metrics | {f"loss/{self.role}": sums.loss, f"grad/{self.role}_norm": norm}
        if before is not None:
            metrics |= self._adams_view(before)
        return UpdateStats(optimizer_steps=1, backward_passes=len(parts), metrics=metrics, block_norms=found)

    def _adams_view(self, before: Sequence[torch.Tensor]) -> dict[str, float]:
        """Norm of the change just made, and the share of coordinates where epsilon is over a tenth of sqrt(v_hat)."""
        changes = [parameter.detach() - old for parameter, old in zip(self.parameters, before, strict=True)]
        small = ruled_by_epsilon(self.optimizer)
        return {
            f"grad/{self.role}_applied_norm": torch.nn.utils.get_total_norm(changes).item(),
            f"grad/{self.role}_epsilon_frac": small / sum(parameter.numel() for parameter in self.parameters),
        }

    def _apply(self, loss: float, lr: float) -> float:
        """Clip and step on the accumulated gradient; returns its norm before clipping."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients).item()
        if not (np.isfinite(norm) and np.isfinite(loss)):
            self.optimizer.zero_grad()
            raise Diverged(f"{self.role}: loss is {loss}, gradient norm is {norm}")
        if self.clip_norm is not None and norm > self.clip_norm:
            torch._foreach_mul_(gradients, self.clip_norm / norm)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm


class TorchTrainer(TorchModule):
    """Trains the policy."""

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: OptimizerConfig,
        micro: int,
        temperature: float,
        longest_shared_row: int,
    ) -> None:
        super().__init__(model, optimizer, micro, longest_shared_row, role="actor")
        self.temperature = temperature

    def step(self, batch: TrainBatch, loss: Loss, lr: float, probe: NoiseProbe | None = None) -> UpdateStats:
        def loss_of(part: TrainBatch) -> TokenLoss:
            return policy_loss(self.model, part, loss, self.temperature, self.longest_shared_row)

        return self._optimize(batch, loss_of, lr, probe)

    def logprobs(self, batch: TokenBatch) -> list[np.ndarray]:
        return response_logprobs(self.model, self.micro, self.temperature, self.longest_shared_row, batch)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self.model.named_parameters()
