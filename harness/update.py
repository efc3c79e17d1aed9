"""One rollout batch: generate, reward, train, sync. Shared by trials and timing passes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from harness.algorithm.advantages import zero_variance
from harness.config import OptimizerConfig
from harness.evaluation import score_groups
from harness.parts import Parts
from harness.steps import train
from harness.training.trainer import Diverged
from harness.types import RolloutGroup, ScoredGroups, UpdateStats


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
    """The true counters of a trial; with the state of its parts, all that a checkpoint holds."""

    samples_trained: int = 0
    samples_generated: int = 0
    optimizer_steps: int = 0
    rollout_batches: int = 0
    prompts_used: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True)
class Update:
    """What one rollout batch did. `trained` are the groups of `generated` that entered a gradient."""

    generated: ScoredGroups
    trained: ScoredGroups
    lr: float
    critic_lr: float | None
    stats: UpdateStats
    seconds: dict[str, float]

    @property
    def samples_dropped(self) -> int:
        """Sampled responses that were not trained on; greedy ones are no candidates."""
        return self.generated.rewards_PG.size - self.samples_trained

    @property
    def samples_trained(self) -> int:
        """Responses that entered a gradient, each counted once however many passes there were."""
        return self.trained.rewards_PG.size

    @property
    def tokens_generated(self) -> int:
        """Response tokens, end tokens included, of everything that was generated."""
        return count_tokens(self.generated.groups)

    @property
    def tokens_trained(self) -> int:
        """Response tokens that entered a gradient, each counted once."""
        return count_tokens(self.trained.sampled)

    @property
    def metrics(self) -> dict[str, float]:
        """Rewards and responses as the policy sampled them, dropped ones included, beside what the parts report."""
        rollouts = [rollout for group in self.generated.sampled for rollout in group.rollouts]
        metrics = {
            "reward/mean": float(self.generated.rewards_PG.mean()),
            "response/length_mean": count_tokens(self.generated.sampled) / len(rollouts),
            "response/truncated_frac": sum(rollout.truncated for rollout in rollouts) / len(rollouts),
            **self.stats.metrics,
        }
        if self.generated.rewards_PG.shape[1] > 1:
            metrics["reward/zero_variance_frac"] = float(zero_variance(self.generated.rewards_PG).mean())
        if self.generated.greedy_rewards_P is not None:
            metrics["reward/greedy_mean"] = float(self.generated.greedy_rewards_P.mean())
        return metrics


def run_update(parts: Parts, progress: Progress) -> Update:
    """Generate, reward, train, sync; counters move with what happened. Raises Diverged."""
    watch = Stopwatch()
    generated, trained = collect(parts, progress, watch)
    samples_trained = progress.samples_trained + trained.rewards_PG.size
    lr = learning_rate(parts.config.optimizer, samples_trained)
    critic = parts.config.critic_optimizer
    critic_lr = None if critic is None else learning_rate(critic, samples_trained)
    with watch.phase("train"):
        stats = train(parts, trained, lr, critic_lr, progress.rollout_batches, progress.samples_trained)
    progress.samples_trained = samples_trained
    progress.optimizer_steps += stats.optimizer_steps
    progress.rollout_batches += 1
    with watch.phase("sync"):
        parts.engine.update_weights(parts.trainer.weights(), progress.rollout_batches)
    return Update(generated, trained, lr, critic_lr, stats, watch.seconds)


def collect(parts: Parts, progress: Progress, watch: Stopwatch) -> tuple[ScoredGroups, ScoredGroups]:
    """What is generated, and what of it is trained on: num_prompts groups, less those dropped and not replaced.

    Without a single live group a batch is trained on as it is, with a gradient of zero: a policy without any signal
    uses up its budget like every other and shows as what it is.
    """
    wanted, rounds = parts.config.batch.num_prompts, parts.algorithm.needs.refill_rounds
    generated = _collect_round(parts, progress, watch, wanted)
    if rounds is None:
        return generated, generated
    for _ in range(rounds):
        missing = wanted - int((~zero_variance(generated.rewards_PG)).sum())
        if missing == 0:
            break
        generated = generated.joined(_collect_round(parts, progress, watch, missing))
    live_P = ~zero_variance(generated.rewards_PG)
    return generated, generated.selected(live_P if live_P.any() else np.arange(len(live_P)) < wanted)


def _collect_round(parts: Parts, progress: Progress, watch: Stopwatch, num_prompts: int) -> ScoredGroups:
    with watch.phase("generate"):
        groups = generate(parts, progress.prompts_used, num_prompts)
    progress.prompts_used += len(groups)
    progress.samples_generated += sum(len(group.rollouts) for group in groups)
    with watch.phase("reward"):
        rewards_PR = reward(parts, groups)
    return ScoredGroups(tuple(groups), rewards_PR, parts.algorithm.needs.greedy_responses)


def generate(parts: Parts, first_prompt: int, num_prompts: int) -> list[RolloutGroup]:
    """Groups from the prompt stream, starting at `first_prompt`; greedy responses come last in each."""
    indices = range(first_prompt, first_prompt + num_prompts)
    prompts = [parts.task.train_prompt(parts.config.seed, index) for index in indices]
    return parts.engine.generate(prompts, parts.train_sampling())


def reward(parts: Parts, groups: Sequence[RolloutGroup]) -> np.ndarray:
    """Rewards [P, R] of every response. A reward that is not finite ends the trial."""
    rewards_PR = score_groups(groups, parts.task, parts.tokenizer)
    if not np.isfinite(rewards_PR).all():
        p, r = np.argwhere(~np.isfinite(rewards_PR))[0]
        raise Diverged(f"the reward of response {r} to prompt {groups[p].prompt.index} is {rewards_PR[p, r]}")
    return rewards_PR


def learning_rate(optimizer: OptimizerConfig, samples_trained: int) -> float:
    """Rate of the update that ends at `samples_trained`: rises linearly over warmup_samples, then constant.

    >>> warm = OptimizerConfig(lr=1.0, warmup_samples=100)
    >>> learning_rate(warm, 25), learning_rate(warm, 200), learning_rate(OptimizerConfig(lr=1.0), 8)
    (0.25, 1.0, 1.0)
    """
    warmup_samples = optimizer.warmup_samples
    return optimizer.lr * min(1.0, samples_trained / warmup_samples) if warmup_samples else optimizer.lr


def count_tokens(groups: Sequence[RolloutGroup]) -> int:
    """Response tokens, end tokens included."""
    return sum(len(rollout.token_ids_T) for group in groups for rollout in group.rollouts)
