"""Samples from any transformers causal language model, in this process: the exact reference engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harness.models import encode_prompts, end_tokens, require_room
from harness.rollout.decoder import Decoder
from harness.rollout.engine import Arrival, Sampling
from harness.rollout.flight import Flight
from harness.rollout.occupancy import Meter, Occupancy
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
        self.end_ids = end_tokens(model, tokenizer)
        self.weights_version = 0
        self.occupancy = Occupancy(0)

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
        require_room(prompts, prompt_ids, sampling.max_response_tokens, self.model.config)
        total, size = len(prompts) * sampling.num_responses, sampling.num_responses
        wave = self.gen_batch or total
        rollouts: list[Rollout] = []
        meter = Meter(min(wave, total))
        meter.start()
        for start in range(0, total, wave):
            prompt_S, response_S = np.divmod(np.arange(start, min(start + wave, total)), size)
            first, last = int(prompt_S[0]), int(prompt_S[-1]) + 1
            flight = Flight(partial(Decoder, self.model), sampling, self.end_ids, len(prompt_S))
            flight.begin(prompts[first:last], prompt_ids[first:last], prompt_S - first, response_S)
            while in_flight := flight.size:
                flight.step(self.weights_version)
                meter.lap(in_flight)
            rollouts += [flight.rollout(place) for place in range(len(prompt_S))]
        self.occupancy = meter.total
        return [
            RolloutGroup(prompt, prompt_ids[index], tuple(rollouts[index * size : (index + 1) * size]))
            for index, prompt in enumerate(prompts)
        ]

    def room(self) -> None:
        return None

    def open_flight(self, sampling: Sampling, capacity: int) -> TransformersFlight:
        return TransformersFlight(self, sampling, capacity)


class TransformersFlight:
    """See OpenFlight. The draws of a response depend on nothing that is in flight with it."""

    def __init__(self, engine: TransformersEngine, sampling: Sampling, capacity: int) -> None:
        self.engine = engine
        self.flight = Flight(partial(Decoder, engine.model), sampling, engine.end_ids, capacity)
        self.prompts_S: list[tuple[Prompt, np.ndarray] | None] = [None] * capacity
        self.tokens_discarded = 0

    @property
    def size(self) -> int:
        return self.flight.size

    @torch.inference_mode()
    def begin(self, prompts: Sequence[Prompt]) -> None:
        prompt_ids = encode_prompts(self.engine.tokenizer, prompts)
        sampling = self.flight.sampling
        require_room(prompts, prompt_ids, sampling.max_response_tokens, self.engine.model.config)
        size = sampling.num_responses
        prompt_R, response_R = np.divmod(np.arange(len(prompts) * size), size)
        self._begin(prompts, prompt_ids, prompt_R, response_R)

    @torch.inference_mode()
    def step(self) -> list[Arrival]:
        arrivals = []
        for place in self.flight.step(self.engine.weights_version):
            prompt, prompt_ids = self._prompt(place)
            response = int(self.flight.response_S[place])
            arrivals.append(Arrival(prompt.index, prompt_ids, response, self.flight.rollout(int(place))))
        return arrivals

    @torch.inference_mode()
    def restart(self) -> None:
        places, response_R = self.flight.place_R, self.flight.response_S[self.flight.place_R]
        held = {prompt.index: (prompt, ids) for prompt, ids in (self._prompt(place) for place in places)}
        number = {index: n for n, index in enumerate(held)}
        prompt_R = np.array([number[self._prompt(place)[0].index] for place in places], dtype=np.int64)
        self.tokens_discarded += self.flight.clear()
        if len(places):
            self._begin([p for p, _ in held.values()], [ids for _, ids in held.values()], prompt_R, response_R)

    def _begin(
        self, prompts: Sequence[Prompt], prompt_ids: Sequence[np.ndarray], prompt_R: np.ndarray, response_R: np.ndarray
    ) -> None:
        for place, p in zip(self.flight.begin(prompts, prompt_ids, prompt_R, response_R), prompt_R, strict=True):
            self.prompts_S[place] = prompts[p], prompt_ids[p]

    def _prompt(self, place: np.int64 | int) -> tuple[Prompt, np.ndarray]:
        held = self.prompts_S[place]
        assert held is not None  # every place in flight has one
        return held
