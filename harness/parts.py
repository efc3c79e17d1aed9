"""What a trial is made of, built from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from harness.algorithm.grpo import Grpo
from harness.config import TrialConfig
from harness.models import load_tokenizer
from harness.rollout.engine import RolloutEngine, Sampling
from harness.rollout.transformers import TransformersEngine
from harness.tasks import make_task
from harness.tasks.task import Task
from harness.training.packing import response_logprobs
from harness.training.torch import TorchTrainer
from harness.training.trainer import Trainer
from harness.types import Prompt, TrainBatch
from harness.warm_start import load_policy


class ReferencePolicy(Protocol):
    """A frozen policy: log-probability of each response's tokens, arrays [T]."""

    def __call__(self, batch: TrainBatch) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class Parts:
    """The parts of one trial, ready to run. `reference` is None without a KL term."""

    config: TrialConfig
    task: Task
    tokenizer: PreTrainedTokenizerBase
    engine: RolloutEngine
    trainer: Trainer
    algorithm: Grpo
    reference: ReferencePolicy | None
    eval_prompts: Sequence[Prompt]

    def train_sampling(self, round: int = 0) -> Sampling:
        """group_size sampled responses; prompts are told apart by their index in the stream."""
        return self._sampling("train", round, self.config.batch.group_size, 0)

    def eval_sampling(self, grid_index: int) -> Sampling:
        """One sampled and one greedy response; fresh draws at each point of the evaluation grid."""
        return self._sampling("evaluate", grid_index, 1, 1)

    def _sampling(self, purpose: str, round: int, num_sampled: int, num_greedy: int) -> Sampling:
        limit = self.config.sampling.max_response_tokens or self.task.max_response_tokens
        temperature = self.config.sampling.temperature
        return Sampling(temperature, limit, self.config.seed, purpose, round, num_sampled, num_greedy)


def build_parts(config: TrialConfig, results_dir: Path) -> Parts:
    """Build every part; the engine shares the trainer's module."""
    task = make_task(config.task)
    eval_prompts = task.eval_prompts(config.evaluation.num_prompts, config.evaluation.seed)
    tokenizer = load_tokenizer(config.model, task.alphabet)
    model = load_policy(config, tokenizer, results_dir)
    algorithm = Grpo(config.algorithm)
    micro, temperature = config.batch_shape.micro, config.sampling.temperature
    longest_shared_row = config.execution.share_prompt_up_to_tokens
    reference = None
    if algorithm.needs_reference:
        frozen = load_policy(config, tokenizer, results_dir).requires_grad_(False)
        reference = partial(response_logprobs, frozen, micro, temperature, longest_shared_row)
    return Parts(
        config=config,
        task=task,
        tokenizer=tokenizer,
        engine=TransformersEngine(model, tokenizer, config.batch.gen_batch),
        trainer=TorchTrainer(model, config.optimizer, micro, temperature, longest_shared_row),
        algorithm=algorithm,
        reference=reference,
        eval_prompts=eval_prompts,
    )
