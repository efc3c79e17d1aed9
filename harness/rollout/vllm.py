"""Samples with vLLM, in this process. The only file that imports vllm."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harness.config import ModelConfig
from harness.errors import EnvironmentProblem, InputError
from harness.execution import ExecutionConfig
from harness.memory import Room, machine_memory_bytes
from harness.models import encode_prompts, end_tokens, require_room
from harness.rollout.engine import Sampling
from harness.rollout.occupancy import Meter, Occupancy
from harness.rollout.replicas import in_chunks
from harness.rollout.vllm_requests import Requests, Response, VllmFlight
from harness.rollout.weights import CheckpointForm, head_dim
from harness.types import Prompt, RolloutGroup

# Read when vllm is imported: the engine in this process, where weights reach it as tensors; no telemetry.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
}
# Unless set otherwise: no messages between ours, and no binding to cores, where trials would fight over the same ones.
DEFAULTS = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
CPU_BLOCK_TOKENS = 32
"""Tokens of a cache block on a CPU, the fewest its kernels take: prompts are shared by whole blocks."""
LEAST_SCHEDULED_TOKENS = 8192
"""Tokens of one forward pass, of prompts and responses together; more where more responses are in flight."""
CHUNK_BYTES = 256 * 1024**2


class VllmEngine:
    """One vLLM engine on the GPUs or the CPUs of this process, with weights of its own.

    It starts as a copy of `model`, whatever that came from: vLLM reads no file. At most `in_flight` responses are
    sampled at a time, the rest wait. Attention is vLLM's own.

    Each response has a seed of its own, a hash of (seed, purpose, round, prompt, response), so neither two seeds nor
    two replicas repeat one another. What vLLM promises: a call repeated with the same weights repeats every token. It
    does not promise that a response stays the same beside others: its kernels may round otherwise there, and a draw
    next to a boundary falls to the other side. Its random numbers are not those of the engine transformers: a response
    is another one from the same distribution. On a CPU only 32 bits of a seed count.

    Log-probabilities are those of the tempered distribution. vLLM knows none for greedy responses unless the
    temperature is 1: they are NaN there, and nothing is trained on them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: ModelConfig,
        execution: ExecutionConfig,
        in_flight: int,
        max_response_tokens: int,
    ) -> None:
        vocabulary = model.config.get_text_config().vocab_size
        if len(tokenizer) > vocabulary:
            raise InputError(
                f"model.name: the tokenizer of {config.name} has {len(tokenizer)} tokens, the model {vocabulary}; "
                "needs one that belongs to the model"
            )
        vllm = import_vllm()
        platform, settings = vllm.platforms.current_platform, execution.vllm
        self.tokenizer = tokenizer
        self.in_flight = in_flight
        self.max_prompt_tokens = settings.max_prompt_tokens
        self.occupancy = Occupancy(0)
        self.weights_version = -1
        self.num_updates = 0
        self.form = CheckpointForm(model.config, config.trust_remote_code)
        self._on_cpu = platform.is_cpu()
        self._several = settings.tensor_parallel > 1
        streams = execution.mode == "streaming"
        takes_turns = execution.layout == "colocated" and not streams
        self._sleeps = settings.sleep and takes_turns and platform.is_sleep_mode_available()
        self._asleep: set[str] = set()
        max_tokens = self._max_tokens(max_response_tokens)
        with TemporaryDirectory() as folder:
            self.form.config.save_pretrained(folder)
            self.llm: Any = vllm.LLM(
                folder,
                load_format="dummy",
                skip_tokenizer_init=True,
                generation_config="vllm",  # a model's own top_p or top_k would change the policy
                logprobs_mode="processed_logprobs",  # of the tempered distribution
                dtype=config.dtype,
                trust_remote_code=config.trust_remote_code,
                max_model_len=max_tokens,
                max_num_seqs=in_flight,
                max_num_batched_tokens=max(LEAST_SCHEDULED_TOKENS, in_flight),
                gpu_memory_utilization=settings.memory_frac,
                enable_sleep_mode=self._sleeps,
                tensor_parallel_size=settings.tensor_parallel,
                distributed_executor_backend="mp" if self._several else "uni",
                # A token that is under way while weights arrive would be counted as theirs.
                async_scheduling=False if streams else None,
                **(self._cpu_arguments(max_tokens, settings.memory_frac, streams) if self._on_cpu else {}),
            )
        self.requests = Requests(vllm, self.llm, end_tokens(model, tokenizer).tolist())
        self.update_weights(model.named_parameters(), 0)
        self._rest()

    def _max_tokens(self, max_response_tokens: int) -> int:
        """Tokens of a prompt with its response. InputError when the model has no room for them."""
        context = getattr(self.form.config.get_text_config(), "max_position_embeddings", None)
        if self.max_prompt_tokens is None and context is not None:
            return int(context)
        if self.max_prompt_tokens is None:
            raise InputError(
                "execution.vllm.max_prompt_tokens: unset; the model has no longest context, so it needs one"
            )
        tokens = self.max_prompt_tokens + max_response_tokens
        if context is not None and tokens > context:
            raise InputError(
                f"execution.vllm.max_prompt_tokens: {self.max_prompt_tokens}; of the model's context of {context} "
                f"tokens a response of {max_response_tokens} leaves {max(context - max_response_tokens, 0)}"
            )
        return tokens

    def _cpu_arguments(self, max_tokens: int, memory_frac: float, streams: bool) -> dict[str, Any]:
        """No compilation, and a cache of just what responses in flight need, at most `memory_frac` of the memory."""
        text = self.form.config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        numbers_per_token = 2 * text.num_hidden_layers * heads * head_dim(text)
        at_once = self.in_flight * (2 if streams else 1)  # an evaluation beside what is held in flight
        blocks = 1 + at_once * -(-max_tokens // CPU_BLOCK_TOKENS)
        needed = blocks * CPU_BLOCK_TOKENS * numbers_per_token * 4
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return {
            "enforce_eager": True,
            "block_size": CPU_BLOCK_TOKENS,
            "kv_cache_memory_bytes": min(needed, int(memory_frac * memory_bytes)),
        }

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RolloutGroup]:
        """See RolloutEngine. Responses of an open flight stand still meanwhile: an evaluation adds nothing to q."""
        self._wake("weights", "kv_cache")
        with self.requests.held() as give_up_cache:
            responses = self.submit(prompts, sampling)
            missing, meter = set(responses), Meter(min(self.in_flight, len(responses)))
            meter.start()
            while missing:
                ended = self.requests.step()
                running = self.requests.num_running + len(ended)
                if not running:
                    give_up_cache()
                meter.lap(running)
                missing -= ended
        self.occupancy = meter.total
        self._rest()
        rollouts = [self.requests.take(key, response, sampling) for key, response in responses.items()]
        size = sampling.num_responses
        firsts = list(responses.values())[::size]
        return [
            RolloutGroup(first.prompt, first.prompt_ids_L, tuple(rollouts[p * size : (p + 1) * size]))
            for p, first in enumerate(firsts)
        ]

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Replace every weight in place. InputError when these are another model's, RuntimeError when vLLM kept one."""
        self.weights_version = -1
        self._wake("weights")
        rpc = self.llm.collective_rpc
        rpc(_start_update)
        saved = self.form.weights(weights)
        for chunk in in_chunks(saved, CHUNK_BYTES) if self._several else ([pair] for pair in saved):
            rpc(_load, args=(chunk,))
        for untouched in rpc(_finish_update):
            if untouched:
                raise RuntimeError(f"vLLM kept {len(untouched)} weights as they were, {min(untouched)} among them")
        # What the old weights computed: forgotten where nothing is in flight, and of another name for all that comes.
        self.llm.reset_prefix_cache()
        self.num_updates += 1
        self.llm.llm_engine.set_weight_version(str(version))
        self.weights_version = version

    def room(self) -> Room | None:
        """By vLLM's own cache, which on a CPU is made for the responses in flight: there by one as large as may be."""
        from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

        config, core = self.llm.llm_engine.vllm_config, self.llm.llm_engine.engine_core.engine_core
        cache = core.scheduler.kv_cache_config
        most = get_max_concurrency_for_kv_cache_config(config, cache)
        longest = config.model_config.max_model_len
        text = f"vLLM: {cache.num_blocks:,} cache blocks, {longest:,} tokens for a prompt and its response"
        if self._on_cpu:
            most_bytes = config.cache_config.gpu_memory_utilization * machine_memory_bytes()
            most *= most_bytes / config.cache_config.kv_cache_memory_bytes
            text += f", if execution.vllm.memory_frac of the memory, {most_bytes / 1e9:,.3g} GB, were cache"
        return Room(int(most), text)

    def open_flight(self, sampling: Sampling, capacity: int) -> VllmFlight:
        return VllmFlight(self, sampling)

    def submit(self, prompts: Sequence[Prompt], sampling: Sampling) -> dict[str, Response]:
        """Put every response to these prompts in flight, prompt by prompt. InputError when a prompt is too long."""
        prompt_ids = encode_prompts(self.tokenizer, prompts)
        require_room(prompts, prompt_ids, sampling.max_response_tokens, self.form.config)
        most = self.max_prompt_tokens
        for prompt, ids in zip(prompts, prompt_ids, strict=True):
            if most is not None and len(ids) > most:
                raise InputError(
                    f"execution.vllm.max_prompt_tokens: {most}; prompt {prompt.index} ({prompt.text[:40]!r}) has "
                    f"{len(ids)}; needs at least as many"
                )
        numbers = range(sampling.num_responses)
        return self.submit_again(
            [Response(*prompt, number) for prompt in zip(prompts, prompt_ids, strict=True) for number in numbers],
            sampling,
        )

    def submit_again(self, responses: Sequence[Response], sampling: Sampling) -> dict[str, Response]:
        """Put these responses in flight, each with its own draws: the same at every time."""
        if self.weights_version < 0:
            raise RuntimeError("the last weights did not arrive whole; the engine has none to sample with")
        return self.requests.submit(responses, sampling, str(self.num_updates))

    def _rest(self) -> None:
        """Give the GPU to the trainer; the weights are kept in the machine's memory."""
        if self._sleeps:
            self.llm.sleep(level=1)
            self._asleep = {"weights", "kv_cache"}

    def _wake(self, *parts: str) -> None:
        for part in parts:
            if part in self._asleep:
                self.llm.wake_up(tags=[part])
                self._asleep.discard(part)


def import_vllm() -> Any:
    """The package vllm. EnvironmentProblem when it cannot be imported."""
    os.environ.update(ENVIRONMENT)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
        import vllm.platforms
        import vllm.v1.core.sched.request_queue
    except ImportError as error:
        raise EnvironmentProblem(
            f"execution.engine: vllm cannot be imported ({error}); on GPUs run: pip install 'batch-invariance[vllm]', "
            "on CPUs: make engines"
        ) from None
    return vllm


def _start_update(worker: Any) -> None:
    """Runs in each of vLLM's workers, as the next two do."""
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

    if worker.device.type == "cpu":  # there experts would go on with the packed copy of their old weights
        for module in worker.get_model().modules():
            if hasattr(getattr(module, "quant_method", None), "moe_kernel"):
                module.quant_method.moe_kernel = None
    initialize_layerwise_reload(worker.get_model())
    worker.updated_weights = set()


def _load(worker: Any, chunk: Sequence[tuple[str, torch.Tensor]]) -> None:
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(worker.vllm_config):
        worker.updated_weights |= worker.get_model().load_weights(chunk)


def _finish_update(worker: Any) -> set[str]:
    """Names of the weights that no chunk brought."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

    with set_current_vllm_config(worker.vllm_config):
        finalize_layerwise_reload(worker.get_model(), worker.model_config)
        for module in worker.get_model().modules():  # on a CPU a head tied to the embedding has a packed copy too
            if isinstance(module, VocabParallelEmbedding):
                module.quant_method.process_weights_after_loading(module)
    return {name for name, _ in worker.get_model().named_parameters()} - worker.updated_weights
