"""From rollout groups to train batches, and their split. Arrays only: no model, no device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from harness.types import RolloutGroup, TrainBatch


def make_train_batch(
    groups: Sequence[RolloutGroup],
    advantages_PG: np.ndarray,
    loss_weights: Callable[[np.ndarray], np.ndarray],
    responses_per_step: int,
) -> TrainBatch:
    """All responses of a rollout batch, tokens end to end.

    `loss_weights` maps the lengths [S] of one optimizer step to its token weights [N]; it is applied to
    each run of `responses_per_step` responses, so that every denominator is that of its own step.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    lengths_S = np.array([len(rollout.token_ids_T) for rollout in rollouts])
    steps = range(0, len(rollouts), responses_per_step)
    return TrainBatch(
        prompt_ids=tuple(group.prompt_ids_L for group in groups),
        prompt_of_response_S=np.repeat(np.arange(len(groups)), [len(group.rollouts) for group in groups]),
        lengths_S=lengths_S,
        token_ids_N=np.concatenate([rollout.token_ids_T for rollout in rollouts]),
        behaviour_logprobs_N=np.concatenate([rollout.behaviour_logprobs_T for rollout in rollouts]),
        advantages_N=np.repeat(advantages_PG.reshape(-1), lengths_S),
        loss_weights_N=np.concatenate([loss_weights(lengths_S[first : first + responses_per_step]) for first in steps]),
    )


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


def split_batch(batch: TrainBatch, size: int) -> Iterator[TrainBatch]:
    """The batch in runs of `size` consecutive responses (the last may be shorter), loss weights unchanged."""
    ends_S = np.cumsum(batch.lengths_S)
    for first in range(0, batch.num_responses, size):
        end = min(first + size, batch.num_responses)
        responses = slice(first, end)
        tokens = slice(int(ends_S[first] - batch.lengths_S[first]), int(ends_S[end - 1]))
        yield replace(
            batch,
            prompt_of_response_S=batch.prompt_of_response_S[responses],
            lengths_S=batch.lengths_S[responses],
            token_ids_N=batch.token_ids_N[tokens],
            behaviour_logprobs_N=batch.behaviour_logprobs_N[tokens],
            advantages_N=batch.advantages_N[tokens],
            loss_weights_N=batch.loss_weights_N[tokens],
            ref_logprobs_N=None if batch.ref_logprobs_N is None else batch.ref_logprobs_N[tokens],
        )
