"""What is in flight in a vLLM engine, and responses that stay there between calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from harness.rollout.engine import Arrival, Sampling
from harness.seeds import hash64
from harness.types import Prompt, Rollout

if TYPE_CHECKING:
    from harness.rollout.vllm import VllmEngine


QUEUES = ("running", "waiting", "kv_holding_waiting")
"""Where vLLM's scheduler has its requests."""


@dataclass(frozen=True)
class Response:
    """Which response to which prompt."""

    prompt: Prompt
    prompt_ids_L: np.ndarray
    number: int


class Requests:
    """Responses as requests to vLLM: `vllm` is the package, `llm` its engine. Tokens in `end_ids` end a response."""

    def __init__(self, vllm: Any, llm: Any, end_ids: Sequence[int]) -> None:
        self.vllm = vllm
        self.engine = llm.llm_engine
        self.renderer = llm.renderer
        self.end_ids = list(end_ids)
        self.ended: dict[str, Any] = {}
        self._names: dict[str, str] = {}  # vLLM's own, of the responses in flight
        self._numbers = count()

    def submit(self, responses: Sequence[Response], sampling: Sampling, salt: str) -> dict[str, Response]:
        """Put responses in flight; those to one prompt follow one another. Keys to take them by when they end.

        Whole blocks of the cache are computed once for all responses with the same prompt and salt.
        """
        index_S = np.array([response.prompt.index for response in responses])
        number_S = np.array([response.number for response in responses])
        seed_S = hash64(sampling.seed, sampling.purpose, sampling.round, index_S, number_S) >> np.uint64(1)
        submitted, tokens, rendered = {}, None, None
        for response, seed in zip(responses, seed_S.tolist(), strict=True):
            if response.prompt_ids_L is not tokens:
                tokens = response.prompt_ids_L
                parts = {"prompt_token_ids": tokens.tolist(), "cache_salt": salt}
                [rendered] = self.renderer.render_cmpl([parts])
            key, params = str(next(self._numbers)), self._params(sampling, response.number, seed)
            self._names[key] = self.engine.add_request(key, rendered, params)
            submitted[key] = response
        return submitted

    def step(self) -> set[str]:
        """One forward pass for what is in flight; keys of the responses that ended with it, to be taken."""
        with self._uncompiled():
            outputs = self.engine.step()
        ended = {output.request_id: output.outputs[0] for output in outputs}
        self.ended |= ended
        return set(ended)

    @property
    def scheduler(self) -> Any:
        return self.engine.engine_core.engine_core.scheduler

    @property
    def num_running(self) -> int:
        """Responses that vLLM has places for at the moment, those held left out."""
        return len(self.scheduler.running)

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """What is in flight stands still and keeps its part of the cache, until this ends.

        Yields what makes it give up that part, to be computed again when it goes on: for where too little is left.
        """
        new_queue = self.vllm.v1.core.sched.request_queue.create_request_queue
        scheduler, kept = self.scheduler, {name: getattr(self.scheduler, name) for name in QUEUES}
        empty: dict[str, Any] = {name: new_queue(scheduler.policy) for name in QUEUES} | {"running": []}

        def swap(queues: Mapping[str, Any]) -> None:
            for name, queue in queues.items():
                setattr(scheduler, name, queue)

        def give_up_cache() -> None:
            others = {name: getattr(scheduler, name) for name in QUEUES}
            swap(kept)
            self.engine.reset_prefix_cache(reset_running_requests=True)
            swap(others)

        swap(empty)
        try:
            yield give_up_cache
        finally:
            swap(kept)

    def take(self, key: str, response: Response, sampling: Sampling) -> Rollout:
        """A response that ended."""
        found = self.ended.pop(key)
        del self._names[key]
        logprobs_T = np.array(found.logprobs.logprobs, dtype=np.float32)
        if response.number >= sampling.num_sampled and sampling.temperature != 1:
            logprobs_T[:] = np.nan
        versions_T = np.concatenate(
            [np.full(span.end - span.start, int(span.version)) for span in found.weight_versions]
        )
        tokens_T = np.array(found.token_ids, dtype=np.int64)
        return Rollout(tokens_T, logprobs_T, found.finish_reason == "length", versions_T)

    def abort(self, keys: Iterable[str]) -> int:
        """Take responses out of flight; returns the tokens that are lost."""
        names = [self._names.pop(key) for key in keys]
        lost = sum(self.engine.output_processor.request_states[name].detokenizer.num_output_tokens() for name in names)
        self.engine.abort_request(names, internal=True)
        return lost

    def _params(self, sampling: Sampling, response: int, seed: int) -> Any:
        """How one response is sampled; the greedy ones come last."""
        greedy = response >= sampling.num_sampled
        return self.vllm.SamplingParams(
            temperature=0.0 if greedy else sampling.temperature,
            seed=None if greedy else seed,
            max_tokens=sampling.max_response_tokens,
            ignore_eos=True,  # vLLM's idea of the end tokens; ours are:
            stop_token_ids=[] if sampling.ignore_end else self.end_ids,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=self.vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )

    def _uncompiled(self) -> AbstractContextManager[Any]:
        """On a CPU: to compile the one small function that vLLM compiles takes longer than it ever gives back."""
        return (
            torch.compiler.set_stance("force_eager") if self.vllm.platforms.current_platform.is_cpu() else nullcontext()
        )


class VllmFlight:
    """See OpenFlight. Responses beyond the engine's room wait in its queue; vLLM says which weights sampled a token."""

    def __init__(self, engine: VllmEngine, sampling: Sampling) -> None:
        self.engine = engine
        self.sampling = sampling
        self.open: dict[str, Response] = {}
        self.tokens_discarded = 0

    @property
    def size(self) -> int:
        return len(self.open)

    def begin(self, prompts: Sequence[Prompt]) -> None:
        self.open |= self.engine.submit(prompts, self.sampling)

    def step(self) -> list[Arrival]:
        self.engine.requests.step()
        arrivals = []
        for key in self._ended():
            response = self.open.pop(key)
            rollout = self.engine.requests.take(key, response, self.sampling)
            arrivals.append(Arrival(response.prompt.index, response.prompt_ids_L, response.number, rollout))
        return arrivals

    def restart(self) -> None:
        keys = [key for key in self.open if key not in self.engine.requests.ended]
        self.tokens_discarded += self.engine.requests.abort(keys)
        self.open |= self.engine.submit_again([self.open.pop(key) for key in keys], self.sampling)

    def _ended(self) -> list[str]:
        return [key for key in self.engine.requests.ended if key in self.open]
