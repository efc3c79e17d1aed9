"""One rollout batch: generate, reward, train, sync. Shared by trials and timing passes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from harness.algorithm.advantages import zero_variance
from harness.config import OptimizerConfig
from harness.evaluation import failures, score_groups
from harness.parts import Parts
from harness.rollout.intake import Intake
from harness.rollout.occupancy import Occupancy
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
    """The true counters of a trial; with the state of its parts, all that a checkpoint holds.

    prompts_used: first prompt that was never reached; prompts_again: those below it that are to be generated (again).
    first_rollout_batch: rollout batches before its own first; other than 0 for a branch.
    """

    samples_trained: int = 0
    samples_generated: int = 0
    samples_dropped: int = 0
    optimizer_steps: int = 0
    rollout_batches: int = 0
    prompts_used: int = 0
    prompts_again: list[int] = field(default_factory=list)
    first_rollout_batch: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True)
class Update:
    """What one rollout batch did. `trained` are the groups of `generated` that entered a gradient.

    samples_dropped: sampled responses that were not trained on, greedy ones left out, those too old included.
    occupancy: of the engine during generation; None in mode streaming, whose intake knows it.
    """

    generated: ScoredGroups
    trained: ScoredGroups
    samples_dropped: int
    lr: float
    critic_lr: float | None
    stats: UpdateStats
    seconds: dict[str, float]
    occupancy: Occupancy | None

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
    def throughput(self) -> dict[str, float]:
        """What was trained on over the seconds of all phases."""
        spent_s = sum(self.seconds.values())
        return {"samples_per_s": self.samples_trained / spent_s, "tokens_per_s": self.tokens_trained / spent_s}

    def busy(self, intake: Intake | None) -> dict[str, dict[str, float]]:
        """What engine and trainer did of the time: `generate` is the trainer's wait, in both modes."""
        spent_s = sum(self.seconds.values())
        if self.occupancy is not None:
            engine = self.occupancy.as_json(spent_s)
        else:
            assert intake is not None  # one of the two knows it
            engine = intake.usage()
        return {"engine": engine, "trainer": {"busy_frac": 1 - self.seconds["generate"] / spent_s}}

    @property
    def response_tokens(self) -> dict[str, float]:
        """How long the sampled responses were, dropped ones included."""
        lengths_S = [len(rollout.token_ids_T) for group in self.generated.sampled for rollout in group.rollouts]
        return lengths(lengths_S)

    @property
    def metrics(self) -> dict[str, float]:
        """Rewards and responses as the policy sampled them, dropped ones included, beside what the parts report."""
        rollouts = [rollout for group in self.generated.sampled for rollout in group.rollouts]
        metrics = {
            "reward/mean": float(self.generated.rewards_PG.mean()),
            **failures("reward", self.generated),
            "response/length_mean": count_tokens(self.generated.sampled) / len(rollouts),
            "response/truncated_frac": sum(rollout.truncated for rollout in rollouts) / len(rollouts),
            **self.stats.metrics,
        }
        if self.generated.rewards_PG.shape[1] > 1:
            metrics["reward/zero_variance_frac"] = float(zero_variance(self.generated.rewards_PG).mean())
        if self.generated.greedy_rewards_P is not None:
            metrics["reward/greedy_mean"] = float(self.generated.greedy_rewards_P.mean())
        return metrics


def run_update(parts: Parts, progress: Progress, intake: Intake | None = None) -> Update:
    """Generate, reward, train, sync; counters move with what happened. Raises Diverged.

    With an intake (mode streaming) responses come from there, and the phase `generate` is the time spent waiting.
    """
    watch = Stopwatch()
    batch = collect(parts, progress, watch, intake)
    version, samples_before = progress.rollout_batches, progress.samples_trained
    samples_trained = samples_before + batch.trained.rewards_PG.size
    lr = learning_rate(parts.config.optimizer, samples_trained)
    critic = parts.config.critic_optimizer
    critic_lr = None if critic is None else learning_rate(critic, samples_trained)
    with watch.phase("train"):
        stats = train(parts, batch.trained, lr, critic_lr, version, samples_before)
    if intake is not None:
        stats = replace(stats, metrics={**stats.metrics, **intake.metrics(batch.trained.sampled, version)})
        with watch.phase("generate"):
            intake.while_training()
    progress.samples_trained = samples_trained
    progress.samples_dropped += batch.samples_dropped
    progress.optimizer_steps += stats.optimizer_steps
    progress.rollout_batches += 1
    with watch.phase("sync"):
        parts.engine.update_weights(parts.trainer.weights(), progress.rollout_batches)
        if intake is not None:
            intake.updated(progress.rollout_batches, progress.samples_trained)
    if intake is not None:
        _count(progress, intake)
    return Update(
        batch.generated, batch.trained, batch.samples_dropped, lr, critic_lr, stats, watch.seconds, batch.occupancy
    )


def _count(progress: Progress, intake: Intake) -> None:
    """Take over the counters of the streams. RuntimeError when a response is unaccounted for."""
    progress.samples_generated = intake.samples_generated
    progress.prompts_again, progress.prompts_used = intake.to_generate()
    known = progress.samples_trained + progress.samples_dropped + intake.samples_in_flight
    if progress.samples_generated != known:
        raise RuntimeError(
            f"{progress.samples_generated} responses generated, but {progress.samples_trained} trained on, "
            f"{progress.samples_dropped} dropped and {intake.samples_in_flight} in flight make {known}"
        )


@dataclass(frozen=True)
class _Batch:
    """What was generated, what of it is trained on, and how many sampled responses are not."""

    generated: ScoredGroups
    trained: ScoredGroups
    samples_dropped: int
    occupancy: Occupancy | None


def collect(parts: Parts, progress: Progress, watch: Stopwatch, intake: Intake | None = None) -> _Batch:
    """num_prompts groups, less those without a signal that are dropped and not replaced, where the algorithm says so.

    Without a single live group a batch is trained on as it is, with a gradient of zero: a policy without any signal
    uses up its budget like every other and shows as what it is.
    """
    wanted, rounds = parts.config.batch.num_prompts, parts.algorithm.needs.refill_rounds
    generated, too_old = _collect_round(parts, progress, watch, wanted, intake)
    occupancy = None if intake else parts.engine.occupancy
    if rounds is None:
        return _Batch(generated, generated, too_old, occupancy)
    for _ in range(rounds):
        missing = wanted - int((~zero_variance(generated.rewards_PG)).sum())
        if missing == 0:
            break
        more, old = _collect_round(parts, progress, watch, missing, intake)
        generated, too_old = generated.joined(more), too_old + old
        occupancy = occupancy and occupancy.then(parts.engine.occupancy)
    live_P = ~zero_variance(generated.rewards_PG)
    trained = generated.selected(live_P if live_P.any() else np.arange(len(live_P)) < wanted)
    dropped = generated.rewards_PG.size - trained.rewards_PG.size + too_old
    return _Batch(generated, trained, dropped, occupancy)


def _collect_round(
    parts: Parts, progress: Progress, watch: Stopwatch, num_prompts: int, intake: Intake | None
) -> tuple[ScoredGroups, int]:
    """Scored groups, and the number of responses that were dropped as too old on the way."""
    too_old = 0
    with watch.phase("generate"):
        if intake is None:
            groups = generate(parts, progress.prompts_used, num_prompts)
            progress.prompts_used += len(groups)
            progress.samples_generated += sum(len(group.rollouts) for group in groups)
        else:
            groups, too_old = intake.take(num_prompts, progress.rollout_batches)
    with watch.phase("reward"):
        return reward(parts, groups), too_old


def generate(parts: Parts, first_prompt: int, num_prompts: int) -> list[RolloutGroup]:
    """Groups from the prompt stream, starting at `first_prompt`; greedy responses come last in each."""
    indices = range(first_prompt, first_prompt + num_prompts)
    prompts = [parts.task.train_prompt(parts.config.seed, index) for index in indices]
    return parts.engine.generate(prompts, parts.train_sampling())


def reward(parts: Parts, groups: Sequence[RolloutGroup]) -> ScoredGroups:
    """The groups with the reward of every response. One scored in place that is not finite ends the trial."""
    scored = score_groups(groups, parts.scorer, parts.tokenizer, parts.algorithm.needs.greedy_responses)
    if not np.isfinite(scored.rewards_PR).all():
        p, r = np.argwhere(~np.isfinite(scored.rewards_PR))[0]
        raise Diverged(f"the reward of response {r} to prompt {groups[p].prompt.index} is {scored.rewards_PR[p, r]}")
    return scored


def learning_rate(optimizer: OptimizerConfig, samples_trained: int) -> float:
    """Rate of the update that ends at `samples_trained`: rises linearly over warmup_samples, then constant.

    >>> warm = OptimizerConfig(lr=1.0, warmup_samples=100)
    >>> learning_rate(warm, 25), learning_rate(warm, 200), learning_rate(OptimizerConfig(lr=1.0), 8)
    (0.25, 1.0, 1.0)
    """
    warmup_samples = optimizer.warmup_samples
    return optimizer.lr * min(1.0, samples_trained / warmup_samples) if warmup_samples else optimizer.lr


def lengths(tokens_S: Sequence[int]) -> dict[str, float]:
    """Mean, 95th percentile (between responses, linear) and maximum of the tokens of each response.

    >>> lengths([1, 2, 3, 4, 5])
    {'mean': 3.0, 'p95': 4.8, 'max': 5}
    """
    return {"mean": float(np.mean(tokens_S)), "p95": float(np.percentile(tokens_S, 95)), "max": int(max(tokens_S))}


def count_tokens(groups: Sequence[RolloutGroup]) -> int:
    """Response tokens, end tokens included."""
    return sum(len(rollout.token_ids_T) for group in groups for rollout in group.rollouts)
