"""What a trial is made of, built from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harness.algorithm.algorithm import Algorithm, Needs
from harness.algorithm.registry import make_algorithm
from harness.config import TrialConfig
from harness.evaluation import right_answers
from harness.execution import ExecutionConfig, Role
from harness.members import Members, Spawn
from harness.models import load_tokenizer
from harness.rewards import Scorer, make_scorer
from harness.rollout.engine import RolloutEngine, Sampling
from harness.rollout.replicas import EngineReplicas
from harness.rollout.transformers import TransformersEngine
from harness.tasks import make_task
from harness.tasks.task import Task
from harness.training.critic import TorchCritic
from harness.training.moving_policy import MovingPolicy
from harness.training.packing import response_logprobs
from harness.training.ranks import DeepSpeedCritic, DeepSpeedTrainer, FrozenOnRanks, start_ranks
from harness.training.torch import TorchTrainer
from harness.training.trainer import Critic, Trainer
from harness.types import Prompt, TokenBatch
from harness.warm_start import load_policy


class FrozenPolicy(Protocol):
    """A policy that is not trained: log-probability of each response's tokens, arrays [T]."""

    def __call__(self, batch: TokenBatch) -> list[np.ndarray]: ...


@dataclass(frozen=True)
class Parts:
    """The parts of one trial, ready to run. `reference`, `critic`, `proximal` are there if the algorithm needs them."""

    config: TrialConfig
    task: Task
    scorer: Scorer
    tokenizer: PreTrainedTokenizerBase
    engine: RolloutEngine
    trainer: Trainer
    algorithm: Algorithm
    reference: FrozenPolicy | None
    critic: Critic | None
    proximal: MovingPolicy | None
    eval_prompts: Sequence[Prompt]
    eval_answers: TokenBatch | None
    processes: ExitStack

    def close(self) -> None:
        """End the other processes of the trial."""
        self.processes.close()

    def state(self) -> dict[str, Any]:
        """Everything that training changes."""
        return {name: part.state() for name, part in self._stateful()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a state() again."""
        for name, part in self._stateful():
            part.load_state(state[name])

    def _stateful(self) -> list[tuple[str, Any]]:
        parts = {"trainer": self.trainer, "algorithm": self.algorithm, "critic": self.critic, "proximal": self.proximal}
        return [(name, part) for name, part in parts.items() if part is not None]

    def train_sampling(self, round: int = 0) -> Sampling:
        """group_size sampled responses and those the algorithm compares with; prompts are told apart by their index."""
        return self._sampling("train", round, self.config.batch.group_size, self.algorithm.needs.greedy_responses)

    def eval_sampling(self, grid_index: int) -> Sampling:
        """samples_per_prompt sampled responses and a greedy one; fresh draws at each point of the evaluation grid."""
        return self._sampling("evaluate", grid_index, self.config.evaluation.samples_per_prompt, 1)

    def _sampling(self, purpose: str, round: int, num_sampled: int, num_greedy: int) -> Sampling:
        limit = self.config.sampling.max_response_tokens or self.task.max_response_tokens
        assert limit is not None  # the configuration is refused where neither says it
        drawn = self.config.sampling
        forced = drawn.ignore_end and purpose == "train"
        return Sampling(
            drawn.temperature, limit, self.config.seed, purpose, round, num_sampled, num_greedy, ignore_end=forced
        )


def build_parts(config: TrialConfig, results_dir: Path, spawn: Spawn | None = None) -> Parts:
    """Build every part; those with processes of their own by `spawn`, on Ray unless given. To be closed."""
    with ExitStack() as processes:
        return _build(config, results_dir, spawn or _spawn_on_ray(config.execution), processes)


def _spawn_on_ray(execution: ExecutionConfig) -> Spawn:
    def spawn(role: Role, of: str, args_M: Sequence[tuple[Any, ...]]) -> Members:
        from harness.cluster.processes import spawner

        return spawner(execution)(role, of, args_M)

    return spawn


def _build(config: TrialConfig, results_dir: Path, spawn: Spawn, processes: ExitStack) -> Parts:
    task = make_task(config.task)
    eval_prompts = task.eval_prompts(config.evaluation.num_prompts, config.evaluation.seed)
    tokenizer = load_tokenizer(config.model, task.alphabet)
    algorithm = make_algorithm(config.algorithm)
    needs = algorithm.needs
    micro, temperature = config.batch_shape.micro, config.sampling.temperature
    longest_shared_row = config.execution.share_prompt_up_to_tokens

    def policy() -> PreTrainedModel:
        return load_policy(config, tokenizer, results_dir)

    on_ranks = config.execution.trainer == "deepspeed"
    models = _on_ranks(config, results_dir, needs, spawn, processes) if on_ranks else _here(config, needs, policy)

    def local_model() -> PreTrainedModel:
        """The trainer's own module, where it is in this process."""
        return models.trainer.model if isinstance(models.trainer, TorchTrainer) else policy()

    proximal = None
    if needs.proximal_samples is not None:
        proximal = MovingPolicy(policy(), needs.proximal_samples, micro, temperature, longest_shared_row)
    return Parts(
        config=config,
        task=task,
        scorer=processes.enter_context(closing(make_scorer(task, config.task, config.execution.reward_workers))),
        tokenizer=tokenizer,
        engine=_engine(config, results_dir, local_model, tokenizer, spawn, processes),
        trainer=models.trainer,
        algorithm=algorithm,
        reference=models.reference,
        critic=models.critic,
        proximal=proximal,
        eval_prompts=eval_prompts,
        eval_answers=right_answers(eval_prompts, tokenizer),
        processes=processes.pop_all(),
    )


@dataclass(frozen=True)
class _Models:
    """What is trained, and what it is compared with."""

    trainer: Trainer
    reference: FrozenPolicy | None
    critic: Critic | None


def _here(config: TrialConfig, needs: Needs, policy: Callable[[], PreTrainedModel]) -> _Models:
    """Models in this process, each of its own."""
    micro, temperature = config.batch_shape.micro, config.sampling.temperature
    longest_shared_row = config.execution.share_prompt_up_to_tokens
    reference, critic = None, None
    if needs.reference:
        frozen = policy().requires_grad_(False)
        reference = partial(response_logprobs, frozen, micro, temperature, longest_shared_row)
    if needs.critic:
        assert config.critic_optimizer is not None  # the plan makes one for every algorithm with a critic
        critic = TorchCritic(policy(), config.critic_optimizer, micro, longest_shared_row)
    trainer = TorchTrainer(policy(), config.optimizer, micro, temperature, longest_shared_row)
    return _Models(trainer, reference, critic)


def _on_ranks(config: TrialConfig, results_dir: Path, needs: Needs, spawn: Spawn, processes: ExitStack) -> _Models:
    """Models in the processes of the trainer's ranks."""
    ranks = processes.enter_context(closing(start_ranks(config, spawn)))
    trainer = DeepSpeedTrainer(ranks, config, results_dir)
    reference = FrozenOnRanks(ranks, config, results_dir) if needs.reference else None
    critic = DeepSpeedCritic(ranks, config, results_dir) if needs.critic else None
    return _Models(trainer, reference, critic)


def _engine(
    config: TrialConfig,
    results_dir: Path,
    model: Callable[[], PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    spawn: Spawn,
    processes: ExitStack,
) -> RolloutEngine:
    """Engines in processes of their own, or one here with `model`: no model is loaded where nothing uses it."""
    if not config.execution.num_engines:
        return TransformersEngine(model(), tokenizer, config.batch.gen_batch)
    arguments = [(config, results_dir)] * config.execution.num_engines
    members = processes.enter_context(closing(spawn("engine", "harness.rollout.process:EngineProcess", arguments)))
    return EngineReplicas(members)
