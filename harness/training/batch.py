"""From rollout groups to train batches, and their split. Arrays only: no model, no device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from harness.types import RolloutGroup, TokenBatch, TrainBatch

Batch = TypeVar("Batch", bound=TokenBatch)
# From the lengths [S] of the responses of one optimizer step to the weights [N] of its tokens.
LossWeights = Callable[[np.ndarray], np.ndarray]


def token_batch(groups: Sequence[RolloutGroup]) -> TokenBatch:
    """All responses of a rollout batch, tokens end to end."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return TokenBatch(
        prompt_ids=tuple(group.prompt_ids_L for group in groups),
        prompt_of_response_S=np.repeat(np.arange(len(groups)), [len(group.rollouts) for group in groups]),
        lengths_S=np.array([len(rollout.token_ids_T) for rollout in rollouts]),
        token_ids_N=np.concatenate([rollout.token_ids_T for rollout in rollouts]),
        behaviour_logprobs_N=np.concatenate([rollout.behaviour_logprobs_T for rollout in rollouts]),
    )


def make_train_batch(
    tokens: TokenBatch,
    advantages_N: np.ndarray,
    loss_weights: LossWeights,
    responses_per_step: int,
    **others_N: Any,
) -> TrainBatch:
    """A TrainBatch of these tokens, weighted for steps of `responses_per_step`; `others_N` are its optional fields."""
    weights_N = step_weights(tokens.lengths_S, loss_weights, responses_per_step)
    return TrainBatch(**vars(tokens), advantages_N=advantages_N, loss_weights_N=weights_N, **others_N)


def step_weights(lengths_S: np.ndarray, loss_weights: LossWeights, responses_per_step: int) -> np.ndarray:
    """Weight of each token, shape [N]: every run of `responses_per_step` responses has its own denominator."""
    steps = range(0, len(lengths_S), responses_per_step)
    return np.concatenate([loss_weights(lengths_S[first : first + responses_per_step]) for first in steps])


def supervised_batch(prompt_ids: Sequence[np.ndarray], answer_ids: Sequence[np.ndarray]) -> TrainBatch:
    """One right response for each prompt; every token weighs the same in the loss."""
    lengths_S = np.array([len(ids) for ids in answer_ids])
    num_tokens = int(lengths_S.sum())
    return TrainBatch(
        prompt_ids=tuple(prompt_ids),
        prompt_of_response_S=np.arange(len(prompt_ids)),
        lengths_S=lengths_S,
        token_ids_N=np.concatenate(answer_ids),
        behaviour_logprobs_N=np.zeros(num_tokens, dtype=np.float32),
        advantages_N=np.ones(num_tokens),
        loss_weights_N=np.full(num_tokens, 1 / num_tokens),
    )


def split_batch(batch: Batch, size: int) -> Iterator[Batch]:
    """The batch in runs of `size` consecutive responses (the last may be shorter), loss weights unchanged."""
    ends_S = np.cumsum(batch.lengths_S)
    for first in range(0, batch.num_responses, size):
        end = min(first + size, batch.num_responses)
        yield _select(
            batch, slice(first, end), slice(int(ends_S[first] - batch.lengths_S[first]), int(ends_S[end - 1]))
        )


def consecutive(batch: Batch, first: int, end: int) -> Batch:
    """Responses first .. end - 1 of the batch, loss weights unchanged."""
    start, stop = (int(batch.lengths_S[:place].sum()) for place in (first, end))
    return _select(batch, slice(first, end), slice(start, stop))


def reorder(batch: Batch, order_S: np.ndarray) -> Batch:
    """The batch with response order_S[s] in place s."""
    lengths_S = batch.lengths_S[order_S]
    starts_S = (np.cumsum(batch.lengths_S) - batch.lengths_S)[order_S]
    token_N = np.arange(int(lengths_S.sum())) - np.repeat(np.cumsum(lengths_S) - lengths_S, lengths_S)
    return _select(batch, order_S, np.repeat(starts_S, lengths_S) + token_N)


def _select(batch: Batch, responses: slice | np.ndarray, tokens: slice | np.ndarray) -> Batch:
    """Every field that has a response or a token axis, at these places."""
    selected = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if value is not None and field.name[-2:] in ("_S", "_N"):
            selected[field.name] = value[responses if field.name.endswith("_S") else tokens]
    return replace(batch, **selected)
