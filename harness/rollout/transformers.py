"""Samples from any transformers causal language model, in this process: the exact reference engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harness.models import encode_prompts
from harness.rollout.decoder import Decoder
from harness.rollout.engine import Sampling
from harness.rollout.flight import Flight
from harness.types import Prompt, Rollout, RolloutGroup


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
        self.end_ids = np.array([tokenizer.eos_token_id])
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
        total, size = len(prompts) * sampling.num_responses, sampling.num_responses
        wave = self.gen_batch or total
        rollouts: list[Rollout] = []
        for start in range(0, total, wave):
            prompt_S, response_S = np.divmod(np.arange(start, min(start + wave, total)), size)
            first, last = int(prompt_S[0]), int(prompt_S[-1]) + 1
            flight = Flight(partial(Decoder, self.model), sampling, self.end_ids, len(prompt_S))
            flight.begin(prompts[first:last], prompt_ids[first:last], prompt_S - first, response_S)
            while flight.size:
                flight.step(self.weights_version)
            rollouts += [flight.rollout(place) for place in range(len(prompt_S))]
        return [
            RolloutGroup(prompt, prompt_ids[index], tuple(rollouts[index * size : (index + 1) * size]))
            for index, prompt in enumerate(prompts)
        ]
