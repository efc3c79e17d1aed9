"""Samples from any transformers causal language model, in this process: the exact reference engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from harness import seeds
from harness.models import encode_prompts
from harness.rollout.engine import Sampling
from harness.types import Prompt, Rollout, RolloutGroup

DRAWN_TOGETHER = 64
"""Tokens of a response whose draws are looked up at once."""


class TransformersEngine:
    """Shares the trainer's module, so that a weight update copies nothing, or has one of its own.

    Prompts are encoded once and their cache rows repeated for each response; finished responses
    leave the batch; at most `gen_batch` responses are in flight (None: no limit).
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, gen_batch: int | None = None
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.gen_batch = gen_batch
        self.weights_version = 0

    @torch.no_grad()
    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        own = dict(self.model.named_parameters())
        for name, weight in weights:
            if own[name] is not weight:
                own[name].copy_(weight)
        self.weights_version = version

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RolloutGroup]:
        prompt_ids = encode_prompts(self.tokenizer, prompts)
        total = len(prompts) * sampling.num_responses
        wave = self.gen_batch or total
        rollouts: list[Rollout] = []
        for start in range(0, total, wave):
            prompt_S, response_S = np.divmod(np.arange(start, min(start + wave, total)), sampling.num_responses)
            rollouts += self._sample_wave(prompts, prompt_ids, prompt_S, response_S, sampling)
        size = sampling.num_responses
        return [
            RolloutGroup(prompt, prompt_ids[index], tuple(rollouts[index * size : (index + 1) * size]))
            for index, prompt in enumerate(prompts)
        ]

    def _sample_wave(
        self,
        prompts: Sequence[Prompt],
        prompt_ids: Sequence[np.ndarray],
        prompt_S: np.ndarray,
        response_S: np.ndarray,
        sampling: Sampling,
    ) -> list[Rollout]:
        first, last = int(prompt_S[0]), int(prompt_S[-1]) + 1
        index_S = np.array([prompt.index for prompt in prompts[first:last]])[prompt_S - first]
        tokens_ST = np.zeros((len(prompt_S), sampling.max_response_tokens), dtype=np.int64)
        logprobs_ST = np.zeros(tokens_ST.shape, dtype=np.float32)
        lengths_S = np.full(len(prompt_S), sampling.max_response_tokens)
        ended_S = np.zeros(len(prompt_S), dtype=bool)

        decoder = _Decoder(self.model, prompt_ids[first:last], prompt_S - first)
        greedy_S = response_S >= sampling.num_sampled
        alive = np.arange(len(prompt_S))
        for step in range(sampling.max_response_tokens):
            if step % DRAWN_TOGETHER == 0:
                uniform_ST = self._uniforms(sampling, index_S[alive], response_S[alive], step)
            uniform = uniform_ST[:, step % DRAWN_TOGETHER]
            tokens, logprobs = draw_tokens(decoder.logits_RV, uniform, greedy_S[alive], sampling.temperature)
            drawn = tokens.numpy(force=True)
            tokens_ST[alive, step] = drawn
            logprobs_ST[alive, step] = logprobs.numpy(force=True)
            ended = drawn == self.tokenizer.eos_token_id
            some_ended = ended.any()
            if some_ended:
                lengths_S[alive[ended]] = step + 1
                ended_S[alive[ended]] = True
            if step + 1 == sampling.max_response_tokens or ended.all():
                break
            decoder.advance(tokens, np.flatnonzero(~ended) if some_ended else None)
            if some_ended:
                alive, uniform_ST = alive[~ended], uniform_ST[~ended]
        return [
            Rollout(tokens_ST[s, :length], logprobs_ST[s, :length], not ended_S[s], self.weights_version)
            for s, length in enumerate(lengths_S)
        ]

    @staticmethod
    def _uniforms(sampling: Sampling, index_R: np.ndarray, response_R: np.ndarray, first_token: int) -> np.ndarray:
        """The next draws of each response, looked up together because a look-up costs more than its numbers."""
        tokens = np.arange(first_token, min(first_token + DRAWN_TOGETHER, sampling.max_response_tokens))
        indices = sampling.round, index_R[:, None], response_R[:, None], tokens
        return seeds.uniforms(sampling.seed, sampling.purpose, *indices)


class _Decoder:
    """Key-value cache and next-token logits of the responses still in flight (R rows)."""

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
        self.mask: torch.Tensor | None = None
        position_ids = torch.from_numpy(np.arange(width) - padding[:, None]).clamp(min=0).to(model.device)
        if padding.any():
            self.mask = torch.from_numpy(np.arange(width) >= padding[:, None]).to(model.device)
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
        if self.mask is not None:
            self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=True)
        self.logits_RV = self._forward(tokens_R[:, None], self.position_R[:, None])
        self.position_R = self.position_R + 1

    def _keep(self, rows: torch.Tensor) -> None:
        self.cache.batch_select_indices(rows)
        if self.mask is not None:
            self.mask = self.mask[rows]

    def _forward(self, ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        output = self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=position_ids,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]


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
