"""What a sweep file and a trial may say. Strict and frozen: an unknown key or a wrong type is an error.

`SweepConfig` is the file. `TrialConfig` is one trial after `harness.plan` resolved it: the content of
config.json and of `config` in plan.json. Both share their sections; the doc line of a field is its description.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from harness.advise.config import AdviseConfig, Moments
from harness.algorithm.config import AlgorithmConfig, GrpoConfig
from harness.algorithm.lr_rules import ClipNormRule, LrRule, WarmupRule, WeightDecayRule
from harness.batching import BatchShape, Cadence, resolve_batch
from harness.errors import InputError
from harness.execution import ExecutionConfig
from harness.fields import Betas, Count, LrTable, PositiveInt, Strict
from harness.tasks.config import DigitTaskConfig, ReverseDigitsConfig, TaskConfig

# Small models built from a transformers LlamaConfig with these fields; their tokenizer has one token a character.
EMBEDDED_MODELS: dict[str, dict[str, Any]] = {
    "tiny-llama": {
        "hidden_size": 64,
        "intermediate_size": 172,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "initializer_range": 0.05,
    },
}


VLLM_TEMPERATURES = 0.01, 2.0


class WarmStartConfig(Strict):
    """The short supervised start that all trials of a sweep share."""

    steps: PositiveInt = Field(100, description="most supervised optimizer steps")
    num_responses: PositiveInt = Field(64, description="right answers per supervised step, all of them in one step")
    lr: float = Field(2e-3, gt=0, description="learning rate of the supervised steps")
    seed: Count = Field(0, description="seed of the prompts and of the label noise")
    label_noise: float = Field(0.0, ge=0, lt=1, description="probability that a digit of the answer is made wrong")
    stop_score: float | None = Field(None, gt=0, lt=1, description="stop when the expected score reaches this")
    check_every_steps: PositiveInt = Field(5, description="steps between two looks at stop_score")


class ModelConfig(Strict):
    """Any transformers causal language model."""

    name: str = Field(
        "tiny-llama", min_length=1, description="embedded model, local folder, GGUF file, or hub id owner/name"
    )
    revision: str | None = Field(None, description="commit of a hub model")
    system_prompt: str | None = Field(None, description="system message of the chat template; unset: the template's")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="type of the weights in the forward pass")
    attention: Literal["sdpa", "eager"] = Field("sdpa", description="attention implementation of transformers")
    trust_remote_code: bool = Field(False, description="run code that comes with a hub model")
    seed: Count = Field(0, description="random initialisation of an embedded model")
    warm_start: WarmStartConfig | None = Field(None, description="supervised start, or none")


class BatchConfig(Strict):
    """The rollout batch and how it is cut. Sizes count responses; harness.batching has the arithmetic."""

    num_prompts: PositiveInt = Field(8, description="prompts per rollout batch")
    group_size: PositiveInt = Field(8, description="responses per prompt")
    mini_batch_size: PositiveInt | None = Field(
        None, description="responses per optimizer step and rank; unset: cadence"
    )
    micro_batch_size_per_gpu: PositiveInt | None = Field(None, description="responses per backward pass and rank")
    gen_batch: PositiveInt | None = Field(None, description="most responses in flight; unset: the whole batch")
    cadence: Cadence = Field("one_step_per_batch", description="what an unset mini_batch_size means")

    @property
    def train_batch(self) -> int:
        """B = num_prompts * group_size."""
        return self.num_prompts * self.group_size


class OptimizerConfig(Strict):
    """Adam and how it follows the batch: numbers are the reference arm's, rules are functions of kappa = B/B_ref."""

    name: Literal["adam", "adamw"] = Field("adam", description="optimizer")
    lr: float = Field(gt=0, description="learning rate of the reference arm")
    lr_rule: LrRule = Field("sqrt", description="how lr, and for adam_sde betas and eps too, follow kappa")
    noise_scale: float | None = Field(None, gt=0, description="train batch where the rate of lr_rule surge peaks")
    lr_table: LrTable | None = Field(None, description="rates of lr_rule table by train batch, {64: 2.0e-4}")
    betas: Betas = Field((0.9, 0.999), description="decay of the two moments")
    eps: float = Field(1e-8, ge=0, description="Adam's epsilon")
    weight_decay: float = Field(0.0, ge=0, description="weight decay")
    weight_decay_rule: WeightDecayRule = Field("fixed", description="how weight_decay follows kappa")
    clip_norm: float | None = Field(None, gt=0, description="clip the gradient to this norm; unset: no clip")
    clip_norm_rule: ClipNormRule = Field("fixed", description="how clip_norm follows kappa")
    warmup_samples: Count = Field(0, description="samples over which lr rises from 0")
    warmup_rule: WarmupRule = Field("fixed", description="how warmup_samples follows kappa")


class TrialOptimizerConfig(OptimizerConfig):
    """The optimizer of one trial: every number is the one applied, after its rule.

    `<name>_ref` is the number the rule started from; only lr_ref is kept where the rule left it as it was.
    """

    lr_ref: float = Field(gt=0, description="learning rate before lr_rule")
    betas_ref: Betas | None = Field(None, description="betas before lr_rule, where they differ")
    eps_ref: float | None = Field(None, ge=0, description="eps before lr_rule, where it differs")
    weight_decay_ref: float | None = Field(None, ge=0, description="weight_decay before its rule, where it differs")
    clip_norm_ref: float | None = Field(None, gt=0, description="clip_norm before its rule, where it differs")
    warmup_samples_ref: Count | None = Field(None, description="warmup_samples before its rule, where it differs")


class SamplingConfig(Strict):
    """How responses are drawn in training and in the sampled evaluation."""

    temperature: float = Field(1.0, gt=0, description="sampling temperature")
    max_response_tokens: PositiveInt | None = Field(
        None, description="most tokens of a response; unset: the task's need"
    )
    ignore_end: bool = Field(
        False, description="training responses go on to max_response_tokens whatever they draw: all of one length"
    )
    top_p: float = Field(1.0, description="1: responses come from the policy that is trained, nothing cut off")
    top_k: int = Field(0, description="0: likewise")

    @model_validator(mode="after")
    def _is_the_policy(self) -> Self:
        for field, whole in (("top_p", 1), ("top_k", 0)):
            if getattr(self, field) != whole:
                raise InputError(
                    f"sampling.{field}: {getattr(self, field):g}; responses would come from another distribution than "
                    f"the one that is trained, and every ratio of the two be wrong; needs {whole}"
                )
        return self


class EvaluationConfig(Strict):
    """The grid in samples that every arm shares, and the target."""

    every_samples: PositiveInt = Field(1024, description="spacing of the evaluation grid in samples trained")
    num_prompts: int = Field(512, ge=2, description="held-out prompts")
    samples_per_prompt: PositiveInt = Field(1, description="sampled responses to each, whose mean is its score")
    metric: Literal["eval/score", "eval/expected_score", "eval/greedy_score"] = Field(
        "eval/score", description="metric that the target refers to"
    )
    target: float = Field(0.7, gt=0, lt=1, description="score to reach")
    seed: Count = Field(0, description="seed of the held-out prompts")


class StatisticsConfig(Strict):
    """Statistics of the gradient beside its norm. They change no update and no timing pass."""

    every_samples: Count = Field(192, description="spacing of noise measurements in samples trained; 0: none")


class TimingConfig(Strict):
    """The timing passes at the end of a sweep, arms interleaved and nothing else running."""

    rounds: Count = Field(5, description="measurements per arm; 0: none")
    min_seconds: float = Field(0.5, gt=0, description="least duration of one measurement")


class ProfileConfig(Strict):
    """The measurements of `python -m harness profile`: speed alone, nothing is learned."""

    response_tokens: PositiveInt | None = Field(
        None, description="length of every response, its end ignored; unset: as the model ends it"
    )
    min_seconds: float = Field(0.5, gt=0, description="least duration of a measurement of each phase")
    least_rounds: int = Field(5, ge=2, description="measurements of every arm before their intervals are looked at")
    half_width: float = Field(
        0.05, gt=0, lt=1, description="no more rounds once the 95% interval of each mean is within this share of it"
    )
    limit_s: float = Field(600.0, gt=0, description="time by which the last round should be over; one is always made")


class TrackingConfig(Strict):
    """The mirror of the records; metrics.jsonl is written in any case."""

    wandb: bool = Field(True, description="mirror to Weights & Biases, offline unless WANDB_MODE says otherwise")
    project: str = Field("batch-invariance", min_length=1, description="W&B project")
    entity: str | None = Field(None, description="W&B entity")
    tags: Annotated[tuple[str, ...], Field(strict=False)] = Field((), description="W&B tags")
    tensorboard: bool = Field(False, description="mirror to TensorBoard, in tensorboard/ of the trial's folder")


class Sections(Strict):
    """The sections that a sweep file and a trial have in common."""

    model: ModelConfig = Field(default_factory=ModelConfig, description="model")
    task: TaskConfig = Field(default_factory=ReverseDigitsConfig, description="task")
    batch: BatchConfig = Field(default_factory=BatchConfig, description="rollout batch")
    algorithm: AlgorithmConfig = Field(default_factory=GrpoConfig, description="algorithm")
    optimizer: OptimizerConfig = Field(description="optimizer and learning-rate rule")
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="sampling")
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig, description="evaluation grid and target")
    statistics: StatisticsConfig = Field(default_factory=StatisticsConfig, description="gradient statistics")
    execution: ExecutionConfig = Field(default_factory=ExecutionConfig, description="engine, trainer, workers")
    timing: TimingConfig = Field(default_factory=TimingConfig, description="timing passes")
    tracking: TrackingConfig = Field(default_factory=TrackingConfig, description="mirror of the records")
    budget_samples: PositiveInt = Field(description="number of samples every trial trains on")
    stop_past_target_frac: float | None = Field(
        None, ge=0, description="end a trial that held the target for this share more samples than it took; unset: none"
    )


class SweepConfig(Sections):
    """A sweep file. Its sections are the defaults of every arm.

    Each entry of `arms` maps dotted names to values; lists are multiplied out, so that one value that is
    itself a list is written nested: {optimizer.betas: [[0.9, 0.95]]}. `reference` names one arm.
    """

    sweep: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="name, which is the folder in results/")
    question: str = Field(min_length=1, description="question the sweep answers, in one sentence")
    seeds: tuple[int, ...] = Field(description="count of seeds (from 0), or a list of them")
    profile: ProfileConfig = Field(default_factory=ProfileConfig, description="measurements of speed alone")
    advise: AdviseConfig = Field(default_factory=AdviseConfig, description="python -m harness advise")
    reference: dict[str, Any] = Field(description="dotted names and values that pick the reference arm")
    arms: Annotated[tuple[dict[str, Any], ...], Field(strict=False)] = Field(
        description="list of arms: dotted names to values, lists multiplied out"
    )

    @model_validator(mode="before")
    @classmethod
    def _seeds_from_count(cls, data: Any) -> Any:
        if isinstance(data, dict) and "seeds" in data:
            return data | {"seeds": parse_seeds(data["seeds"])}
        return data

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        if self.sweep in ("reference", "paper"):
            raise InputError(f"sweep: {self.sweep!r} is the name of a committed folder of results/; choose another")
        if not self.reference:
            raise InputError("reference: empty; needs names that pick one arm, for instance {batch.num_prompts: 8}")
        if not self.arms:
            raise InputError("arms: empty; needs at least one arm, for instance [{batch.num_prompts: [8, 16]}]")
        return self


class BranchConfig(Strict):
    """Where a trial starts that goes on from another one."""

    trial: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/trials/[A-Za-z0-9][A-Za-z0-9._+-]*$",
        description="folder of the parent in the results folder, as default/trials/P8-G8-sqrt-s0-00000000",
    )
    at_samples: PositiveInt = Field(description="samples the parent had trained on at the checkpoint to start from")
    moments: Moments = Field(description="what becomes of Adam's moments (harness.moments)")
    noise_scale: float | None = Field(None, gt=0, description="train batch at which signal and noise are equal")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.moments == "rescaled" and self.noise_scale is None:
            raise InputError(
                "branch.noise_scale: unset; moments rescaled needs the noise scale of the parent's gradient"
            )
        return self


class TrialConfig(Sections):
    """One trial: an arm with a seed, everything resolved. Construction checks that it can run."""

    optimizer: TrialOptimizerConfig = Field(description="optimizer after its rules; of the actor where there are two")
    critic_optimizer: TrialOptimizerConfig | None = Field(None, description="optimizer of the critic after its rules")
    seed: Count = Field(description="seed of the trial's sampling")
    branch: BranchConfig | None = Field(None, description="start from a checkpoint of another trial; unset: anew")

    @property
    def batch_shape(self) -> BatchShape:
        """The rollout batch with everything left open resolved."""
        return resolve_batch(
            self.batch.num_prompts,
            self.batch.group_size,
            ranks=self.execution.ranks,
            mini_batch_size=self.batch.mini_batch_size,
            micro_batch_size_per_gpu=self.batch.micro_batch_size_per_gpu,
            gen_batch=self.batch.gen_batch,
            cadence=self.batch.cadence,
        )

    @property
    def first_samples(self) -> int:
        """Where it starts: 0, but for a branch."""
        return self.branch.at_samples if self.branch else 0

    @property
    def num_rollout_batches(self) -> int:
        """ceil(samples to train on / B): the last batch may overshoot the budget by less than B."""
        return math.ceil((self.budget_samples - self.first_samples) / self.batch.train_batch)

    @property
    def responses_per_step(self) -> int:
        """Responses of one optimizer step, over all ranks."""
        return self.batch_shape.mini * self.batch_shape.ranks

    @property
    def checkpoint_every_samples(self) -> int:
        """execution.checkpoint_every_samples, or four spacings of the evaluation grid."""
        return self.execution.checkpoint_every_samples or 4 * self.evaluation.every_samples

    @model_validator(mode="after")
    def _can_run(self) -> Self:
        train_batch = self.batch_shape.train_batch
        if self.algorithm.uses_group_baseline and self.batch.group_size < 2:
            raise InputError(
                f"batch.group_size: 1 leaves {self.algorithm.name} no group to compare with; needs at least 2"
            )
        self._suits_the_trainer()
        least, most = VLLM_TEMPERATURES
        if self.execution.engine == "vllm" and not least <= self.sampling.temperature <= most:
            raise InputError(
                f"sampling.temperature: {self.sampling.temperature:g}; the engine vllm needs {least:g} to {most:g}"
            )
        self._can_stream()
        if self.branch and self.budget_samples < self.first_samples + train_batch:
            raise InputError(
                f"budget_samples: {self.budget_samples}; a branch at {self.first_samples} samples with a rollout batch "
                f"of {train_batch} needs at least {self.first_samples + train_batch}"
            )
        if self.budget_samples < train_batch:
            raise InputError(
                f"budget_samples: {self.budget_samples} is below one rollout batch of {train_batch} responses "
                f"({self.batch.num_prompts} x {self.batch.group_size}); needs at least {train_batch}"
            )
        if self.algorithm.loss_average == "constant" and self.algorithm.constant_tokens is None:
            raise InputError("algorithm.constant_tokens: unset; loss_average constant needs it, for instance 8")
        self._suits_the_task()
        return self

    def _suits_the_trainer(self) -> None:
        """What the trainer asks of ranks, devices and the type of the weights."""
        execution = self.execution
        if execution.trainer == "torch":
            if execution.ranks > 1:
                raise InputError(
                    f"execution.ranks: {execution.ranks}; the trainer torch is one process, needs 1 "
                    "(execution.trainer deepspeed takes more)"
                )
            return
        if execution.ranks > 1 and 0 < execution.gpus_per_rank < 1:
            raise InputError(
                f"execution.gpus_per_rank: {execution.gpus_per_rank:g}; ranks cannot meet on one GPU, "
                f"{execution.ranks} of them need 1 each"
            )
        if execution.deepspeed.zero_stage == 0 and self.model.dtype == "bfloat16":
            raise InputError(
                "execution.deepspeed.zero_stage: 0 adds gradients up in model.dtype bfloat16; needs 1, 2 or 3, which "
                "keep float32"
            )

    def _suits_the_task(self) -> None:
        """What the task asks of model, evaluation and sampling."""
        task = self.task
        if isinstance(task, DigitTaskConfig) and self.evaluation.num_prompts >= task.num_possible_prompts:
            raise InputError(
                f"evaluation.num_prompts: {self.evaluation.num_prompts} leaves no prompt to train on; "
                f"task.{task.name} with num_digits {task.num_digits} has {task.num_possible_prompts}, needs fewer"
            )
        if self.evaluation.metric == "eval/expected_score" and not task.has_one_right_answer:
            raise InputError(
                f"evaluation.metric: eval/expected_score; task.{task.name} has no single right answer whose "
                "probability it would be, needs eval/score or eval/greedy_score"
            )
        if self.model.warm_start is not None and not task.has_one_right_answer:
            raise InputError(
                f"model.warm_start: task.{task.name} has no single right answer to learn from; needs to be left out"
            )
        if not task.speaks_language:
            return
        if self.model.name in EMBEDDED_MODELS:
            raise InputError(
                f"model.name: {self.model.name} knows digits only; task.{task.name} needs a model that speaks, such as "
                "smollm2-135m, a local folder or a hub id"
            )
        if self.sampling.max_response_tokens is None:
            raise InputError(
                f"sampling.max_response_tokens: unset; a response to task.{task.name} may be of any length, needs a "
                "limit such as 512"
            )

    def _can_stream(self) -> None:
        """What the mode streaming asks of the batch and of the algorithm."""
        if self.execution.mode == "synchronous":
            return
        shape, group_size = self.batch_shape, self.batch.group_size
        if shape.gen_batch < shape.train_batch or shape.gen_batch % group_size:
            least = max(shape.train_batch, -(-shape.gen_batch // group_size) * group_size)
            raise InputError(
                f"batch.gen_batch: {shape.gen_batch}; the mode streaming needs whole groups of {group_size} and at "
                f"least the train batch of {shape.train_batch}: {least}"
            )
        if self.algorithm.name == "remax":
            raise InputError(
                "execution.mode: streaming; remax compares with a greedy response of the policy that is trained, needs "
                "synchronous"
            )


MOST_SEEDS = 100_000


def parse_seeds(value: Any) -> tuple[int, ...]:
    """Seeds from a count or a list. A count n means 0 .. n-1.

    >>> parse_seeds(3), parse_seeds([7, 5])
    ((0, 1, 2), (7, 5))
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        if value > MOST_SEEDS:
            raise InputError(f"seeds: {value}; needs a count of at most {MOST_SEEDS}")
        return tuple(range(value))
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if not is_list or not all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in value):
        raise InputError(f"seeds: {value!r}; needs a count of at least 1 or a list of whole numbers such as [0, 1, 2]")
    repeated = sorted({seed for seed in value if value.count(seed) > 1})
    if repeated:
        raise InputError(f"seeds: {repeated[0]} occurs more than once; two equal seeds give one curve, not two")
    return tuple(value)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names.

    >>> flatten({"batch": {"num_prompts": 8}, "optimizer.lr": 1e-3})
    {'batch.num_prompts': 8, 'optimizer.lr': 0.001}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
