"""What runs the trials: engine, trainer, and the processes and devices of a trial. Nothing here changes a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from harness.errors import InputError
from harness.fields import Count, PositiveInt, Strict

Role = Literal["trial", "rank", "engine"]
_RAYS_OWN = ("CPU", "GPU", "memory", "object_store_memory")


@dataclass(frozen=True)
class Bundle:
    """CPUs, GPUs and custom resources that lie on one node. A fraction of a GPU is of one GPU."""

    cpus: float
    gpus: float
    custom: tuple[tuple[str, float], ...] = ()


class VllmConfig(Strict):
    """Settings of the engine vllm."""

    memory_frac: float = Field(
        0.5, gt=0, le=1, description="share of a GPU's memory that the engine takes; on a CPU, most for its cache"
    )
    tensor_parallel: PositiveInt = Field(1, description="GPUs that share one engine's model")
    sleep: bool = Field(
        True, description="free a GPU's memory while the trainer works, in the layout colocated and mode synchronous"
    )
    max_prompt_tokens: PositiveInt | None = Field(
        None, description="longest prompt; unset: whatever a response leaves of the model's positions"
    )


class DeepSpeedConfig(Strict):
    """Settings of the trainer deepspeed. With model.dtype bfloat16 the optimizer works on weights in float32."""

    zero_stage: int = Field(2, ge=0, le=3, description="what the ranks share: 1 optimizer, 2 gradients, 3 weights too")
    whole_below: Count = Field(100_000, description="parameters of fewer elements stay whole on each rank, stage 3")
    activation_checkpointing: bool = Field(False, description="compute activations again in the backward pass")
    offload_optimizer: bool = Field(False, description="float32 weights and Adam's moments in CPU memory, stages 1-3")
    offload_parameters: bool = Field(False, description="weights in CPU memory between their uses, stage 3")

    @model_validator(mode="after")
    def _can_be_shared(self) -> Self:
        for field, least in (("offload_optimizer", 1), ("offload_parameters", 3)):
            if getattr(self, field) and self.zero_stage < least:
                raise InputError(
                    f"execution.deepspeed.{field}: true at zero_stage {self.zero_stage}; needs at least stage {least}"
                )
        return self


class StreamingConfig(Strict):
    """Settings of the mode streaming."""

    order: Literal["arrival", "prompt"] = Field(
        "arrival", description="finished groups are trained on as they finish, or in the order of their prompts"
    )
    unfinished: Literal["continue", "restart"] = Field(
        "continue", description="what responses in flight do when new weights arrive"
    )
    max_staleness_updates: PositiveInt | None = Field(
        None, description="groups with a token that more updates have passed since are dropped; unset: none"
    )
    steps_while_training: Count = Field(
        0, description="tokens of each response that an engine in the trial's process samples before new weights arrive"
    )


class ExecutionConfig(Strict):
    """What runs the trials. Nothing here changes a gradient."""

    engine: Literal["transformers", "vllm"] = Field("transformers", description="what samples responses")
    engine_replicas: Count = Field(0, description="engines in processes of their own; 0: as few as the engine needs")
    vllm: VllmConfig = Field(default_factory=VllmConfig, description="engine vllm")
    trainer: Literal["torch", "deepspeed"] = Field("torch", description="what updates the weights")
    ranks: PositiveInt = Field(1, description="data-parallel ranks of the trainer")
    deepspeed: DeepSpeedConfig = Field(default_factory=DeepSpeedConfig, description="trainer deepspeed")
    layout: Literal["colocated", "separate"] = Field(
        "colocated", description="engines take turns with the trainer on its devices, or have their own"
    )
    mode: Literal["synchronous", "streaming"] = Field(
        "synchronous", description="generate, then train, in turns; or generate on while training"
    )
    streaming: StreamingConfig = Field(default_factory=StreamingConfig, description="mode streaming")
    workers: PositiveInt | None = Field(None, description="trials at a time; unset: as many as fit")
    threads: PositiveInt = Field(1, description="threads of each process of a trial")
    reward_workers: PositiveInt = Field(
        1, description="processes that score responses, for tasks whose scores need a time limit"
    )
    gpus_per_rank: float = Field(0.0, ge=0, description="GPUs of each process that trains, may be a fraction")
    gpus_per_engine: float = Field(0.0, ge=0, description="GPUs of each engine, in the layout separate")
    resources: dict[str, float] = Field(
        default_factory=dict,
        description="custom resources of the cluster that each bundle of a trial takes, such as {fast_disk: 1}",
    )
    max_logprob_gap: float | None = Field(
        None,
        gt=0,
        description="mean gap between the engine's and the trainer's log-probabilities that fails a trial; unset: "
        "0.01 in float32, 0.15 in bfloat16",
    )
    max_attempts: PositiveInt = Field(3, description="attempts at a trial before it counts as failed")
    hang_minutes: float = Field(
        120.0, gt=0, description="minutes without a record after which a trial is ended and tried again"
    )
    checkpoint_every_samples: PositiveInt | None = Field(
        None, description="spacing of checkpoints; unset: 4 * evaluation.every_samples"
    )
    checkpoints_kept: int = Field(
        2, ge=2, description="last checkpoints of a trial that stay; branches start from them"
    )
    share_prompt_up_to_tokens: Count = Field(
        1024, description="longest training row in which the responses of one prompt share its computation"
    )

    @model_validator(mode="after")
    def _resources_are_custom(self) -> Self:
        for name, amount in self.resources.items():
            if name in _RAYS_OWN:
                raise InputError(
                    f"execution.resources.{name}: {amount:g}; needs the name of a custom resource "
                    "(CPUs: execution.threads; GPUs: execution.gpus_per_rank, execution.gpus_per_engine)"
                )
            if not amount > 0 or (amount > 1 and amount != int(amount)):
                raise InputError(f"execution.resources.{name}: {amount:g}; needs a whole number or a fraction of one")
        return self

    @model_validator(mode="after")
    def _gpus_can_be_had(self) -> Self:
        for name in ("gpus_per_rank", "gpus_per_engine"):
            gpus = getattr(self, name)
            if gpus > 1 and gpus != int(gpus):
                raise InputError(f"execution.{name}: {gpus:g}; needs a fraction of one GPU or a whole number of them")
        if self.layout == "colocated" and self.num_engines and self.gpus_per_rank > 1:
            raise InputError(
                f"execution.gpus_per_rank: {self.gpus_per_rank:g}; an engine in the layout colocated takes turns "
                "with a rank on one GPU, needs at most 1 (execution.layout separate gives engines GPUs of their own)"
            )
        parallel = self.vllm.tensor_parallel
        own = self.gpus_per_engine if self.layout == "separate" else self.gpus_per_rank
        if self.engine == "vllm" and parallel > 1 and 0 < own < parallel:
            raise InputError(
                f"execution.vllm.tensor_parallel: {parallel}; an engine has {own:g} GPUs here, needs {parallel}: "
                f"execution.layout separate and execution.gpus_per_engine {parallel}"
            )
        return self

    @property
    def num_engines(self) -> int:
        """Engines in processes of their own: vllm always has one."""
        return max(self.engine_replicas, int(self.engine == "vllm"))

    @property
    def num_rank_processes(self) -> int:
        """Trainer ranks in processes of their own; the trainer torch works in the trial's."""
        return self.ranks if self.trainer == "deepspeed" else 0

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """What a trial occupies: one bundle for each process that trains, in the layout separate one for each engine.

        The trial's own process lives in the first. It trains there, or waits while others do; the processes that score
        take turns with it.
        """
        custom = tuple(self.resources.items())
        first = Bundle(max(self.threads, self.reward_workers), self.gpus_per_rank, custom)
        trainers = (first, *(Bundle(self.threads, self.gpus_per_rank, custom),) * (self.num_rank_processes - 1))
        if self.layout == "colocated":
            return trainers
        return trainers + (Bundle(self.threads, self.gpus_per_engine, custom),) * self.num_engines

    def place(self, role: Role, index: int) -> tuple[int, Bundle]:
        """(bundle in which a process lives, what it takes of it). Processes that take turns share the bundle's GPUs."""
        num_trainers = max(self.num_rank_processes, 1)
        if role == "engine" and self.layout == "separate":
            return num_trainers + index, self.bundles[num_trainers + index]
        bundle = index % num_trainers
        if role == "trial" and self.num_rank_processes:
            return bundle, Bundle(0, 0)
        engines = range(self.num_engines) if self.layout == "colocated" else ()
        sharing = 1 + sum(engine % num_trainers == bundle for engine in engines)
        cpus = 0 if role == "engine" else self.threads
        return bundle, Bundle(cpus, self.gpus_per_rank / sharing)
