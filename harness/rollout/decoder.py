"""Key-value cache and next-token logits of the responses in flight, and the draw of their next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


class Decoder:
    """R rows, one for each response in flight, that stand before their next token: logits_RV say how it is drawn."""

    def __init__(self, model: PreTrainedModel, prompt_ids: Sequence[np.ndarray], prompt_of_row: np.ndarray) -> None:
        self.model = model
        lengths = np.array([len(ids) for ids in prompt_ids])
        width = int(lengths.max())
        ids = np.zeros((len(prompt_ids), width), dtype=np.int64)
        for row, prompt in enumerate(prompt_ids):
            ids[row, width - len(prompt) :] = prompt
        padding = width - lengths
        self.position_R = torch.from_numpy(lengths[prompt_of_row]).to(model.device)
        # Without padding there is nothing to mask, and attention takes its fast path.
        self.mask_RL: torch.Tensor | None = None
        position_ids = torch.from_numpy(np.arange(width) - padding[:, None]).clamp(min=0).to(model.device)
        if padding.any():
            self.mask_RL = torch.from_numpy(np.arange(width) >= padding[:, None]).to(model.device)
        self.cache = DynamicCache(config=model.config)
        rows = torch.from_numpy(prompt_of_row).to(model.device)
        self.logits_RV = self._forward(torch.from_numpy(ids).to(model.device), position_ids)[rows]
        self._keep(rows)

    def advance(self, tokens_R: torch.Tensor, keep: np.ndarray | None) -> None:
        """Append the drawn tokens; `keep` selects the rows that go on (None: all of them)."""
        if keep is not None:
            rows = torch.from_numpy(keep).to(self.model.device)
            tokens_R, self.position_R = tokens_R[rows], self.position_R[rows]
            self._keep(rows)
        if self.mask_RL is not None:
            self.mask_RL = torch.nn.functional.pad(self.mask_RL, (0, 1), value=True)
        self.logits_RV = self._forward(tokens_R[:, None], self.position_R[:, None])
        self.position_R = self.position_R + 1

    def join(self, other: Decoder) -> None:
        """Take the rows of the other decoder in behind these: the narrower cache gets padding on its left.

        Raises ValueError for models whose cache forgets (sliding windows): rows of different ages do not align there.
        """
        if any(not isinstance(layer, DynamicLayer) or layer.is_sliding for layer in self.cache.layers):
            raise ValueError("responses of different ages cannot share the cache of a model with a sliding window")
        self._trim()
        widths = self._width, other._width
        width = max(widths)
        masks = [
            torch.nn.functional.pad(decoder._mask_or_ones(), (width - own, 0), value=False)
            for decoder, own in zip((self, other), widths, strict=True)
        ]
        mask_RL = torch.cat(masks)
        self.mask_RL = None if bool(mask_RL.all()) else mask_RL
        for mine, theirs in zip(self._layers, other._layers, strict=True):
            mine.keys = _stacked(mine.keys, theirs.keys, width)
            mine.values = _stacked(mine.values, theirs.values, width)
        self.position_R = torch.cat([self.position_R, other.position_R])
        self.logits_RV = torch.cat([self.logits_RV, other.logits_RV])

    @property
    def _layers(self) -> list[Any]:
        """Each with its keys and values [R, heads, L, size]."""
        return list(self.cache.layers)

    @property
    def _width(self) -> int:
        return int(self.cache.get_seq_length())

    def _mask_or_ones(self) -> torch.Tensor:
        if self.mask_RL is not None:
            return self.mask_RL
        return torch.ones(len(self.position_R), self._width, dtype=torch.bool, device=self.model.device)

    def _trim(self) -> None:
        """Drop the columns on the left that are padding in every row."""
        if self.mask_RL is None:
            return
        unused = int((~self.mask_RL).all(dim=0).long().cumprod(0).sum())
        if unused:
            for layer in self._layers:
                layer.keys, layer.values = layer.keys[..., unused:, :], layer.values[..., unused:, :]
            self.mask_RL = self.mask_RL[:, unused:]

    def _keep(self, rows: torch.Tensor) -> None:
        self.cache.batch_select_indices(rows)
        if self.mask_RL is not None:
            self.mask_RL = self.mask_RL[rows]

    def _forward(self, ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        output = self.model(
            input_ids=ids,
            attention_mask=self.mask_RL,
            position_ids=position_ids,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]


def _stacked(mine: torch.Tensor, theirs: torch.Tensor, width: int) -> torch.Tensor:
    """Keys or values [R, heads, L, size] of both, padded on the left of L to `width`."""
    return torch.cat([torch.nn.functional.pad(part, (0, 0, width - part.shape[-2], 0)) for part in (mine, theirs)])


def draw_tokens(
    logits_RV: torch.Tensor, uniform_R: np.ndarray, greedy_R: np.ndarray, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (int64 [R]) by inverting the cumulative distribution at `uniform_R`, and their tempered log-probs [R].

    Rows marked greedy take the most likely token instead.

    >>> logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]] * 3))
    >>> draw_tokens(logits, np.array([0.1, 0.6, 0.9]), np.array([False, False, True]), 1.0)[0]
    tensor([0, 1, 1])
    """
    logprobs_RV = torch.log_softmax(logits_RV.float() / temperature, dim=-1)
    cumulative_RV = logprobs_RV.exp().cumsum(-1)
    target_R1 = torch.from_numpy(uniform_R).to(cumulative_RV)[:, None] * cumulative_RV[:, -1:]
    tokens_R1 = torch.searchsorted(cumulative_RV, target_R1, right=True).clamp(max=logits_RV.shape[-1] - 1)
    if greedy_R.any():
        greedy_R1 = torch.from_numpy(greedy_R).to(logits_RV.device)[:, None]
        tokens_R1 = torch.where(greedy_R1, logprobs_RV.argmax(-1, keepdim=True), tokens_R1)
    return tokens_R1[:, 0], logprobs_RV.gather(-1, tokens_R1)[:, 0]
