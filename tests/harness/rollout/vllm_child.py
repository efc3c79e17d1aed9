"""What the process of the vLLM tests does: vLLM changes the process that it runs in, so it gets one of its own.

The functions take and return what can be sent; the engine stays there.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen3MoeConfig

from harness.config import ModelConfig
from harness.execution import ExecutionConfig, VllmConfig
from harness.memory import Room
from harness.rollout.engine import Arrival, Sampling
from harness.rollout.occupancy import Occupancy
from harness.rollout.vllm import VllmEngine
from harness.types import Prompt, RolloutGroup
from tests.harness.processes import listening_at
from tests.harness.small import TOKENIZER, model

IN_FLIGHT, MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS = 128, 80, 20
Weights = Iterable[tuple[str, torch.Tensor]]
_SMALL: dict[str, Any] = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
    "eos_token_id": TOKENIZER.eos_token_id,
    "bos_token_id": None,
}
KINDS = {
    # The head is the embedding, as in the small models of SmolLM2 and Qwen2.5.
    "tied": Qwen2Config(**_SMALL, tie_word_embeddings=True),
    # transformers joins the experts' weights; saved models, and vLLM, hold them apart.
    "experts": Qwen3MoeConfig(**_SMALL, head_dim=32, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2),
}
_engines: list[VllmEngine] = []


def of_kind(kind: str, seed: int) -> PreTrainedModel:
    """One of KINDS, the same in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: Any = AutoModelForCausalLM.from_config(KINDS[kind])
    return made.eval()


def start(kind: str | None = None, **changes: Any) -> dict[str, str]:
    """A new engine in place of the one there was; what it is. changes: of the configuration, those of vllm apart."""
    _engines.clear()
    gc.collect()
    settings = VllmConfig(max_prompt_tokens=MAX_PROMPT_TOKENS, **changes.pop("vllm", {}))
    execution = ExecutionConfig(engine="vllm", vllm=settings, **changes)
    start_from = model() if kind is None else of_kind(kind, 0)
    engine = VllmEngine(start_from, TOKENIZER, ModelConfig(), execution, IN_FLIGHT, MAX_RESPONSE_TOKENS)
    _engines.append(engine)
    import vllm

    models = engine.llm.apply_model(_module_of)
    found = {"version": vllm.__version__, "engine": type(engine.llm.llm_engine).__module__, "models": " ".join(models)}
    return found | {"platform": vllm.platforms.current_platform.device_type}


def listens_at() -> set[str]:
    """The addresses at which this process and its children listen."""
    return listening_at(os.getpid())


def stop() -> None:
    """End the process at once: Python would take seconds to take apart what vLLM made."""
    _engines.clear()
    gc.collect()
    os._exit(0)


def _module_of(held: torch.nn.Module) -> str:
    return type(held).__module__


def generate(prompts: Sequence[Prompt], sampling: Sampling) -> tuple[list[RolloutGroup], Occupancy]:
    [engine] = _engines
    return engine.generate(prompts, sampling), engine.occupancy


def update_weights(weights: Sequence[tuple[str, torch.Tensor]], version: int) -> None:
    [engine] = _engines
    engine.update_weights(weights, version)


def most_running(prompts: Sequence[Prompt], sampling: Sampling) -> int:
    """Most responses that vLLM had in flight at a time."""
    [engine] = _engines
    schedule, seen = engine.llm.llm_engine.engine_core.engine_core.scheduler.schedule, []

    def watched(*arguments: Any) -> Any:
        scheduled = schedule(*arguments)
        seen.append(engine.requests.num_running)
        return scheduled

    engine.llm.llm_engine.engine_core.engine_core.scheduler.schedule = watched
    engine.generate(prompts, sampling)
    engine.llm.llm_engine.engine_core.engine_core.scheduler.schedule = schedule
    return max(seen)


def fly(
    prompts: Sequence[Prompt],
    sampling: Sampling,
    steps: int,
    weights: Sequence[tuple[str, torch.Tensor]],
    restart: bool,
) -> tuple[list[Arrival], int]:
    """Some steps, then new weights of version 1, an evaluation in between, and the rest; tokens discarded on the way."""
    [engine] = _engines
    flight = engine.open_flight(sampling, IN_FLIGHT)
    flight.begin(prompts)
    arrivals = [arrival for _ in range(steps) for arrival in flight.step()]
    engine.update_weights(weights, 1)
    if restart:
        flight.restart()
    engine.generate(prompts[:1], Sampling(1.0, 2, 0, "evaluate"))
    while flight.size:
        arrivals += flight.step()
    return arrivals, flight.tokens_discarded


def pause(prompts: Sequence[Prompt], sampling: Sampling, steps: int) -> tuple[list[Arrival], list[int], Occupancy]:
    """Some steps, an evaluation, and the rest; tokens made in flight before and after it, and how full it was."""
    [engine] = _engines
    flight, made = engine.open_flight(sampling, IN_FLIGHT), []
    flight.begin(prompts)
    arrivals = [arrival for _ in range(steps) for arrival in flight.step()]
    for evaluate in (True, False):
        states = engine.requests.engine.output_processor.request_states.values()
        made.append(sum(state.detokenizer.num_output_tokens() for state in states))
        if evaluate:
            engine.generate(prompts, Sampling(1.0, 8, 0, "evaluate", num_sampled=30, ignore_end=True))
    while flight.size:
        arrivals += flight.step()
    return arrivals, made, engine.occupancy


def room() -> Room | None:
    [engine] = _engines
    return engine.room()


def free_frac() -> tuple[float, float]:
    """Share of the GPU's memory that is free while the engine rests, and while it is awake."""
    [engine] = _engines
    free = []
    for parts in ((), ("weights", "kv_cache")):
        engine._wake(*parts)
        available, total = torch.cuda.mem_get_info()
        free.append(available / total)
    engine._rest()
    return free[0], free[1]


def sleep_between_calls() -> None:
    """Rest and wake as on a GPU shared with a trainer. On a CPU vLLM goes through the motions and frees nothing."""
    [engine] = _engines
    engine._sleeps = True
