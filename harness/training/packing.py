"""Lays the responses of a micro-batch into rows of one forward pass.

A row is a prompt followed by responses to it: the prompt is computed once, each response attends to
the prompt and to itself, and no padding stands between them. Long rows would make the attention mask
quadratic, so past a length limit a response takes a row of its own; one layout serves both cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from harness.training.batch import split_batch
from harness.types import TokenBatch

PADDING, PROMPT = -1, 0


@dataclass(frozen=True)
class PackedRows:
    """Inputs of one forward pass (R rows of L tokens), and where each response token is predicted.

    segment_RL is -1 for padding, 0 for the prompt, 1.. for the responses of the row. The logits of
    the last `logits_to_keep` columns hold every prediction: token n at [row_N[n], column_N[n]].
    """

    input_ids_RL: np.ndarray
    position_ids_RL: np.ndarray
    segment_RL: np.ndarray
    logits_to_keep: int
    row_N: np.ndarray
    column_N: np.ndarray


def pack_rows(batch: TokenBatch, longest_shared_row: int) -> PackedRows:
    """Pack every response of the (micro-)batch; rows that share a prompt hold at most `longest_shared_row` tokens.

    The last token of a response is only predicted, never an input, so a response adds T - 1 tokens.
    """
    rows = list(_rows(batch, longest_shared_row))
    prompt_lengths_R = np.array([len(batch.prompt_ids[batch.prompt_of_response_S[first]]) for first, _ in rows])
    inputs_S = batch.lengths_S - 1
    prompt_width = int(prompt_lengths_R.max())
    width = prompt_width + int(max(inputs_S[first:end].sum() for first, end in rows))
    ids_RL = np.zeros((len(rows), width), dtype=np.int64)
    positions_RL = np.zeros((len(rows), width), dtype=np.int64)
    segment_RL = np.full((len(rows), width), PADDING)

    for row, (first, _) in enumerate(rows):
        prompt = batch.prompt_ids[batch.prompt_of_response_S[first]]
        ids_RL[row, prompt_width - len(prompt) : prompt_width] = prompt
        positions_RL[row, prompt_width - len(prompt) : prompt_width] = np.arange(len(prompt))
        segment_RL[row, prompt_width - len(prompt) : prompt_width] = PROMPT

    sizes_R = np.array([end - first for first, end in rows])
    row_S = np.repeat(np.arange(len(rows)), sizes_R)
    segment_S = np.arange(len(inputs_S)) - np.repeat(np.cumsum(sizes_R) - sizes_R, sizes_R) + 1
    offset_S = np.cumsum(inputs_S) - inputs_S
    start_S = prompt_width + offset_S - np.repeat(offset_S[np.cumsum(sizes_R) - sizes_R], sizes_R)

    # Token t of a response: predicted from column start + t - 1, except the first, from the prompt's last.
    of_response_N = np.repeat(np.arange(len(inputs_S)), batch.lengths_S)
    token_N = np.arange(len(of_response_N)) - np.repeat(np.cumsum(batch.lengths_S) - batch.lengths_S, batch.lengths_S)
    row_N = row_S[of_response_N]
    column_N = np.where(token_N == 0, prompt_width - 1, start_S[of_response_N] + token_N - 1)
    is_input_N = token_N < inputs_S[of_response_N]
    where = row_N[is_input_N], (start_S[of_response_N] + token_N)[is_input_N]
    ids_RL[where] = batch.token_ids_N[is_input_N]
    positions_RL[where] = (prompt_lengths_R[row_N] + token_N)[is_input_N]
    segment_RL[where] = segment_S[of_response_N[is_input_N]]
    kept = width - prompt_width + 1
    return PackedRows(ids_RL, positions_RL, segment_RL, kept, row_N, column_N - (prompt_width - 1))


def _rows(batch: TokenBatch, longest_shared_row: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, end) of consecutive responses that share a row."""
    first = 0
    length = 0
    for s, prompt in enumerate(batch.prompt_of_response_S):
        added = int(batch.lengths_S[s]) - 1
        same_prompt = s > first and prompt == batch.prompt_of_response_S[first]
        if s > first and not (same_prompt and length + added <= longest_shared_row):
            yield first, s
            first = s
        if s == first:
            length = len(batch.prompt_ids[prompt])
        length += added
    yield first, len(batch.prompt_of_response_S)


def attention_mask(segment_RL: torch.Tensor) -> torch.Tensor:
    """Boolean mask [R, 1, L, L], True where query i may attend to key j: j <= i, and j in the prompt or in i's segment.

    >>> attention_mask(torch.tensor([[0, 1, 2]]))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    query, key = segment_RL[:, :, None], segment_RL[:, None, :]
    causal = torch.ones(segment_RL.shape[1], segment_RL.shape[1], dtype=torch.bool, device=segment_RL.device).tril()
    return (((query == key) | (key == PROMPT)) & causal)[:, None]


def token_logits(model: PreTrainedModel, packed: PackedRows, temperature: float) -> torch.Tensor:
    """Tempered logits (float32 or wider, shape [N, V]) that predict each response token."""
    device = model.device
    output = model(
        input_ids=torch.from_numpy(packed.input_ids_RL).to(device),
        position_ids=torch.from_numpy(packed.position_ids_RL).to(device),
        attention_mask=attention_mask(torch.from_numpy(packed.segment_RL).to(device)),
        use_cache=False,
        logits_to_keep=packed.logits_to_keep,
    )
    row_N, column_N = (torch.from_numpy(index).to(device) for index in (packed.row_N, packed.column_N))
    logits_NV = output.logits[row_N, column_N]
    return (logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()) / temperature


def chosen(logprobs_NV: torch.Tensor, token_ids_N: np.ndarray) -> torch.Tensor:
    """Log-probability of each response token, shape [N]."""
    return logprobs_NV.gather(-1, torch.from_numpy(token_ids_N).to(logprobs_NV.device)[:, None])[:, 0]


def token_logprobs(
    model: PreTrainedModel, batch: TokenBatch, temperature: float, longest_shared_row: int
) -> torch.Tensor:
    """Tempered log-probability of each response token, shape [N], from one forward pass."""
    logits_NV = token_logits(model, pack_rows(batch, longest_shared_row), temperature)
    return chosen(torch.log_softmax(logits_NV, dim=-1), batch.token_ids_N)


@torch.inference_mode()
def response_logprobs(
    model: PreTrainedModel, micro: int, temperature: float, longest_shared_row: int, batch: TokenBatch
) -> list[np.ndarray]:
    """Tempered log-probabilities of each response's tokens, float arrays [T], `micro` responses at a time."""
    parts = [
        token_logprobs(model, part, temperature, longest_shared_row).numpy(force=True)
        for part in split_batch(batch, micro)
    ]
    return np.split(np.concatenate(parts), np.cumsum(batch.lengths_S)[:-1])
