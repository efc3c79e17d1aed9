"""The proximal policy of PPO-EWMA: the policy's weights, averaged over the samples it was trained on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from harness.training.packing import response_logprobs
from harness.types import TokenBatch


class MovingPolicy:
    """An exponentially weighted moving average of a policy's weights (Hilton et al. 2110.00641, section 3.2).

    After each rollout batch of n samples, with the weights w of the trained policy:

        total' = beta * total + 1,    average' = (beta * total * average + w) / total'      total starts at 1
        beta = mean_age / (mean_age + n)

    In the long run the weights averaged are beta / (1 - beta) = mean_age / n rollout batches old, mean_age samples
    whatever the batch; the running total corrects for the short run. `policy`, a model of its own that nothing else
    uses, is the first value of the average and then holds it.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        mean_age_samples: float,
        micro: int,
        temperature: float,
        longest_shared_row: int,
    ) -> None:
        self.model = policy.requires_grad_(False)
        self.mean_age_samples = mean_age_samples
        self.micro = micro
        self.temperature = temperature
        self.longest_shared_row = longest_shared_row
        self.total = 1.0

    def __call__(self, batch: TokenBatch) -> list[np.ndarray]:
        """Log-probability of each response's tokens, arrays [T]."""
        return response_logprobs(self.model, self.micro, self.temperature, self.longest_shared_row, batch)

    @torch.no_grad()
    def update(self, weights: Iterable[tuple[str, torch.Tensor]], samples: int) -> None:
        """Take up the weights that a rollout batch of so many samples led to."""
        beta = self.mean_age_samples / (self.mean_age_samples + samples)
        total = beta * self.total + 1.0
        averages = dict(self.model.named_parameters())
        for name, weight in weights:
            averages[name].lerp_(weight, 1.0 / total)
        self.total = total

    def state(self) -> dict[str, Any]:
        """What a resumed trial needs."""
        return {"model": self.model.state_dict(), "total": self.total}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a state() again."""
        self.model.load_state_dict(state["model"])
        self.total = state["total"]
