"""Squared gradient norms of the micro-batches of one optimizer step, taken on the way to their sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from harness.types import BlockNorms, TrainBatch


def block_size(batch: TrainBatch, micro: int) -> int | None:
    """Responses of a block: as many whole groups as fit a micro-batch and divide the batch into equal blocks.

    None where there are no two such blocks. Groups, not responses, are the exchangeable unit.
    """
    sizes_P = np.bincount(batch.prompt_of_response_S - batch.prompt_of_response_S.min())
    sizes_P = sizes_P[sizes_P > 0]
    num_groups, group_size = len(sizes_P), int(sizes_P[0])
    most = min(micro // group_size, num_groups // 2)
    if most == 0 or (sizes_P != group_size).any():
        return None
    return group_size * max(groups for groups in range(1, most + 1) if num_groups % groups == 0)


class Blocks:
    """Takes each block's gradient away after its backward pass, and gives their sum back at the end.

    Token weights have the denominators of the whole step; norms are scaled to the mean over a block's own responses.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], num_responses: int, size: int) -> None:
        self.parameters = parameters
        self.size = size
        self.scale = num_responses / size
        self.norms_sq: list[float] = []
        self.signed_sq: float | None = None
        self.sums: list[torch.Tensor | None] = [None] * len(parameters)

    def measure_signed(self, weighted_N: torch.Tensor, signs_N: np.ndarray) -> None:
        """Measure the first block's gradient with a sign on each token's loss; nothing of it stays."""
        (weighted_N * torch.from_numpy(signs_N).to(weighted_N)).sum().backward(retain_graph=True)
        self.signed_sq = self._norm_sq()
        for parameter in self.parameters:
            parameter.grad = None

    def take(self) -> None:
        """After a block's backward pass: note its norm and add its gradient to the sum."""
        self.norms_sq.append(self._norm_sq())
        for index, parameter in enumerate(self.parameters):
            total, gradient = self.sums[index], parameter.grad
            self.sums[index] = gradient if total is None else total if gradient is None else total.add_(gradient)
            parameter.grad = None

    def give_back(self) -> BlockNorms:
        """Put the sum where the optimizer finds it."""
        for parameter, total in zip(self.parameters, self.sums, strict=True):
            parameter.grad = total
        return BlockNorms(self.size, tuple(self.norms_sq), self.signed_sq)

    def _norm_sq(self) -> float:
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return (self.scale * torch.nn.utils.get_total_norm(gradients).item()) ** 2
