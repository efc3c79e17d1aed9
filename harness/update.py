"""One rollout batch: generate, reward, train, sync. Shared by trials and timing passes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from harness.algorithm.advantages import zero_variance
from harness.evaluation import score_groups
from harness.parts import Parts
from harness.training.batch import make_train_batch, split_batch
from harness.training.trainer import Diverged
from harness.types import RolloutGroup, UpdateStats


class Stopwatch:
    """Seconds of each phase, with the device synchronised at both ends."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started_s = self._now_s()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self._now_s() - started_s

    @staticmethod
    def _now_s() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


@dataclass
class Progress:
    """The true counters of a trial; with weights and optimizer, all that a checkpoint holds."""

    samples_trained: int = 0
    samples_generated: int = 0
    optimizer_steps: int = 0
    rollout_batches: int = 0
    prompts_used: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True)
class Update:
    """What one rollout batch did. rewards_PG has one row a prompt."""

    groups: list[RolloutGroup]
    rewards_PG: np.ndarray
    lr: float
    stats: UpdateStats
    seconds: dict[str, float]

    @property
    def num_tokens(self) -> int:
        """Response tokens, end tokens included."""
        return sum(len(rollout.token_ids_T) for group in self.groups for rollout in group.rollouts)

    @property
    def metrics(self) -> dict[str, float]:
        """Rewards and responses beside what the trainer reports."""
        rollouts = [rollout for group in self.groups for rollout in group.rollouts]
        return {
            "reward/mean": float(self.rewards_PG.mean()),
            "reward/zero_variance_frac": float(zero_variance(self.rewards_PG).mean()),
            "response/length_mean": self.num_tokens / len(rollouts),
            "response/truncated_frac": sum(rollout.truncated for rollout in rollouts) / len(rollouts),
            **self.stats.metrics,
        }


def run_update(parts: Parts, progress: Progress) -> Update:
    """Generate, reward, train, sync; counters move with what happened. Raises Diverged."""
    watch = Stopwatch()
    with watch.phase("generate"):
        groups = generate(parts, progress.prompts_used)
    progress.prompts_used += len(groups)
    progress.samples_generated += sum(len(group.rollouts) for group in groups)
    with watch.phase("reward"):
        rewards_PG = reward(parts, groups)
    optimizer = parts.config.optimizer
    lr = learning_rate(optimizer.lr, optimizer.warmup_samples, progress.samples_trained + rewards_PG.size)
    with watch.phase("train"):
        stats = train(parts, groups, rewards_PG, lr)
    progress.samples_trained += rewards_PG.size
    progress.optimizer_steps += stats.optimizer_steps
    progress.rollout_batches += 1
    with watch.phase("sync"):
        parts.engine.update_weights(parts.trainer.weights(), progress.rollout_batches)
    return Update(groups, rewards_PG, lr, stats, watch.seconds)


def generate(parts: Parts, first_prompt: int) -> list[RolloutGroup]:
    """num_prompts groups from the prompt stream, starting at `first_prompt`."""
    config = parts.config
    indices = range(first_prompt, first_prompt + config.batch.num_prompts)
    prompts = [parts.task.train_prompt(config.seed, index) for index in indices]
    return parts.engine.generate(prompts, parts.train_sampling())


def reward(parts: Parts, groups: list[RolloutGroup]) -> np.ndarray:
    """Rewards [P, G]. A reward that is not finite ends the trial."""
    rewards_PG = score_groups(groups, parts.task, parts.tokenizer)
    if not np.isfinite(rewards_PG).all():
        p, g = np.argwhere(~np.isfinite(rewards_PG))[0]
        raise Diverged(f"the reward of response {g} to prompt {groups[p].prompt.index} is {rewards_PG[p, g]}")
    return rewards_PG


def train(parts: Parts, groups: list[RolloutGroup], rewards_PG: np.ndarray, lr: float) -> UpdateStats:
    """Every optimizer step of the rollout batch; one unless mini_batch_size says otherwise."""
    shape = parts.config.batch_shape
    responses_per_step = shape.mini * shape.ranks
    advantages_PG = parts.algorithm.advantages(rewards_PG)
    batch = make_train_batch(groups, advantages_PG, parts.algorithm.loss_weights, responses_per_step)
    if parts.reference is not None:
        batch = replace(batch, ref_logprobs_N=np.concatenate(parts.reference(batch)))
    steps = [parts.trainer.step(part, parts.algorithm.loss, lr) for part in split_batch(batch, responses_per_step)]
    return combine(steps)


def combine(steps: list[UpdateStats]) -> UpdateStats:
    """Counts add up and metrics average over optimizer steps; gradient norms by their root mean square.

    The gap between engine and trainer is that of the first step: later ones have moved the policy on purpose.
    """
    metrics = {}
    for name in steps[0].metrics:
        values = np.array([step.metrics[name] for step in steps])
        if name.startswith("grad/"):
            metrics[name] = float(np.sqrt(np.mean(values**2)))
        else:
            metrics[name] = float(values[0] if name == "policy/logprob_gap_max" else values.mean())
    return UpdateStats(
        optimizer_steps=sum(step.optimizer_steps for step in steps),
        backward_passes=sum(step.backward_passes for step in steps),
        metrics=metrics,
    )


def learning_rate(lr: float, warmup_samples: int, samples_trained: int) -> float:
    """Rate of the update that ends at `samples_trained`: rises linearly over `warmup_samples`, then constant.

    >>> learning_rate(1.0, 100, 25), learning_rate(1.0, 100, 200), learning_rate(1.0, 0, 8)
    (0.25, 1.0, 1.0)
    """
    return lr * min(1.0, samples_trained / warmup_samples) if warmup_samples else lr
