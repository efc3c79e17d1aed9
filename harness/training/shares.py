"""What goes to the ranks of a trainer and what comes back. No model, no process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch

from harness.training.batch import consecutive, split_batch
from harness.types import TokenBatch, TrainBatch

Role = Literal["actor", "critic", "reference"]
Batch = TypeVar("Batch", bound=TokenBatch)


@dataclass(frozen=True)
class Share(Generic[Batch]):
    """The micro-batches of one rank. Past the first `real` ones they are stand-ins that weigh nothing.

    Every rank has the same number of them: what a rank computes waits for the others, micro-batch by micro-batch.
    """

    parts: tuple[Batch, ...]
    real: int


def deal(batch: Batch, ranks: int, micro: int, unit: int = 1) -> list[Share[Batch]]:
    """Consecutive responses for each rank, in micro-batches of `micro`, the last of a rank perhaps smaller.

    Ranks differ by at most one run of `unit` responses, so that with unit = micro no micro-batch is smaller.

    >>> batch = TokenBatch((np.array([1]),), np.zeros(7, int), np.ones(7, int), np.arange(7), np.zeros(7))
    >>> [[part.token_ids_N.tolist() for part in share.parts] for share in deal(batch, 2, 2)]
    [[[0, 1], [2, 3]], [[4, 5], [6]]]
    >>> [(share.real, [part.token_ids_N.tolist() for part in share.parts]) for share in deal(batch, 3, 2)]
    [(2, [[0, 1], [2]]), (1, [[3, 4], [0]]), (1, [[5, 6], [0]])]
    """
    runs = np.array_split(np.arange(0, batch.num_responses, unit), ranks)
    starts = [int(run[0]) if len(run) else batch.num_responses for run in runs]
    cuts = zip(starts, [*starts[1:], batch.num_responses], strict=True)
    own = [
        [with_own_prompts(part) for part in split_batch(consecutive(batch, first, end), micro)] for first, end in cuts
    ]
    passes = max(len(parts) for parts in own)
    idle = stand_in(batch)
    return [Share((*parts, *[idle] * (passes - len(parts))), len(parts)) for parts in own]


def stand_in(batch: Batch) -> Batch:
    """The first response, of no weight in any loss."""
    first = with_own_prompts(consecutive(batch, 0, 1))
    return (
        replace(first, loss_weights_N=np.zeros_like(first.loss_weights_N)) if isinstance(first, TrainBatch) else first
    )


def with_own_prompts(batch: Batch) -> Batch:
    """The batch without the prompts that none of its responses has."""
    used, prompt_of_response_S = np.unique(batch.prompt_of_response_S, return_inverse=True)
    return replace(
        batch,
        prompt_ids=tuple(batch.prompt_ids[prompt] for prompt in used),
        prompt_of_response_S=prompt_of_response_S,
    )


@dataclass(frozen=True)
class RankStats:
    """What a rank reports of an optimizer step: its part of loss and token averages, the gradient norm over all ranks.

    Where the step measures: squared gradient norms of its micro-batches and of the signed one; of its shard of the
    weights the squared norm of the change, the coordinates ruled by epsilon, and the elements, padding included.
    """

    loss: float
    metrics: dict[str, float]
    norm: float
    norms_sq: list[float]
    signed_sq: float | None
    change_sq: float
    small: int
    elements: int


@dataclass(frozen=True)
class Layout:
    """The parameters of a model in order, and what else its state holds.

    `aliases` maps each name of the model's state to that of its parameter, which tied weights share; `settings` are
    those of the optimizer, `step` the steps that it took.
    """

    names: list[str]
    shapes: list[tuple[int, ...]]
    dtypes: list[torch.dtype]
    aliases: dict[str, str]
    buffers: dict[str, torch.Tensor]
    settings: dict[str, Any]
    step: float
