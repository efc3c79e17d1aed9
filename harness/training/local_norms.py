"""Gradient norms of single backward passes, taken where a trainer adds up and shares gradients on its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class LocalNorms:
    """Sees the gradient of each backward pass before it joins a sum or another rank's, while it is entered.

    With `discard` the gradient is replaced by zeros once it is measured, so that nothing of it stays.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> with LocalNorms([weight]) as norms:
    ...     (weight * torch.tensor([3.0, 4.0])).sum().backward()
    ...     first = norms.take()
    ...     norms.discard = True
    ...     (weight[1] * 2).backward()
    >>> first, norms.take(), weight.grad.tolist()
    (25.0, 4.0, [3.0, 4.0])
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.discard = False
        self._norm_sq: torch.Tensor | float = 0.0
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> LocalNorms:
        # A hook on a parameter sees one backward pass, summed over the places where the parameter is used.
        self._handles = [parameter.register_hook(self._see) for parameter in self.parameters]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def take(self) -> float:
        """Squared norm of the gradients seen since the last call."""
        norm_sq, self._norm_sq = float(self._norm_sq), 0.0
        return norm_sq

    def _see(self, gradient: torch.Tensor) -> torch.Tensor | None:
        self._norm_sq = self._norm_sq + torch.linalg.vector_norm(gradient, dtype=torch.float32) ** 2
        return torch.zeros_like(gradient) if self.discard else None
