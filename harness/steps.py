"""The optimizer steps of one rollout batch: judge the responses, then step through them, mini-batch by mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from harness.algorithm.advantages import explained_variance
from harness.algorithm.algorithm import Feedback
from harness.noise import make_probe, noise_metrics
from harness.parts import Parts
from harness.seeds import hash64
from harness.training.batch import make_train_batch, reorder, split_batch, step_weights, token_batch
from harness.training.trainer import Trainer
from harness.types import NoiseProbe, ScoredGroups, TrainBatch, UpdateStats


def train(
    parts: Parts, scored: ScoredGroups, lr: float, critic_lr: float | None, rollout_batch: int, samples_before: int
) -> UpdateStats:
    """Every optimizer step of the rollout batch: one for each mini-batch in each pass.

    Advantages, values and the policies that the current one is compared with are those before the first step.
    """
    config = parts.config.algorithm
    responses_per_step = parts.config.batch_shape.mini * parts.config.batch_shape.ranks
    batch = judge(parts, scored, responses_per_step)
    move = Move(parts.trainer) if config.measure_move else None
    steps: list[UpdateStats] = []
    for number in range(config.passes):
        if config.shuffle_passes:
            batch = shuffled(parts, batch, responses_per_step, (rollout_batch, number))
        for part in split_batch(batch, responses_per_step):
            probe = None if steps else make_probe(parts.config, part, samples_before)
            steps.append(optimizer_step(parts, part, lr, critic_lr, probe))
    if parts.proximal is not None:
        parts.proximal.update(parts.trainer.weights(), batch.num_responses)
    stats = combine(steps)
    metrics: dict[str, float | None] = {**stats.metrics, **(move.metrics(batch) if move else {})}
    if batch.rollout_values_N is not None and batch.value_targets_N is not None:
        metrics["critic/explained_variance"] = explained_variance(batch.rollout_values_N, batch.value_targets_N)
    return replace(stats, metrics={name: value for name, value in metrics.items() if value is not None})


def judge(parts: Parts, scored: ScoredGroups, responses_per_step: int) -> TrainBatch:
    """The responses with everything that the losses want to know of them."""
    tokens = token_batch(scored.sampled)
    ref_N = None if parts.reference is None else np.concatenate(parts.reference(tokens))
    values_N = None if parts.critic is None else parts.critic.values(tokens)
    proximal = parts.trainer.logprobs if parts.algorithm.needs.recomputed else parts.proximal
    credit = parts.algorithm.credit(Feedback(scored.rewards_PG, tokens, scored.greedy_rewards_P, ref_N, values_N))
    return make_train_batch(
        tokens,
        credit.advantages_N,
        parts.algorithm.loss_weights,
        responses_per_step,
        ref_logprobs_N=ref_N,
        proximal_logprobs_N=None if proximal is None else np.concatenate(proximal(tokens)),
        rollout_values_N=values_N,
        value_targets_N=credit.value_targets_N,
    )


def shuffled(parts: Parts, batch: TrainBatch, responses_per_step: int, indices: tuple[int, int]) -> TrainBatch:
    """The batch with its groups in an order drawn from (seed, rollout batch, pass), weights of its new steps."""
    place_P = hash64(parts.config.seed, "order of a pass", *indices, np.arange(len(batch.prompt_ids)))
    batch = reorder(batch, np.argsort(place_P[batch.prompt_of_response_S], kind="stable"))
    weights_N = step_weights(batch.lengths_S, parts.algorithm.loss_weights, responses_per_step)
    return replace(batch, loss_weights_N=weights_N)


def optimizer_step(
    parts: Parts, batch: TrainBatch, lr: float, critic_lr: float | None, probe: NoiseProbe | None = None
) -> UpdateStats:
    """One step of the policy, and of the critic on the same responses."""
    stats = parts.trainer.step(batch, parts.algorithm.loss, lr, probe)
    noise = noise_metrics(stats, parts.config, batch.num_responses, "actor")
    if parts.critic is None or critic_lr is None or parts.algorithm.value_loss is None:
        return replace(stats, metrics={**stats.metrics, **noise})
    critic = parts.critic.step(batch, parts.algorithm.value_loss, critic_lr, probe and NoiseProbe())
    noise |= noise_metrics(critic, parts.config, batch.num_responses, "critic")
    return replace(stats, metrics={**stats.metrics, **critic.metrics, **noise})


class Move:
    """How far a rollout batch moved the policy: made before its first step, read after its last."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.before = [weight.detach().clone() for _, weight in trainer.weights()]

    def metrics(self, batch: TrainBatch) -> dict[str, float]:
        """Norm of the change of the weights, and mean over the batch's tokens of behaviour - current.

        The latter estimates the KL from the policy that sampled to the one that came out.
        """
        changes = [weight.detach() - old for (_, weight), old in zip(self.trainer.weights(), self.before, strict=True)]
        current_N = np.concatenate(self.trainer.logprobs(batch))
        return {
            "policy/update_norm": torch.nn.utils.get_total_norm(changes).item(),
            "policy/kl_from_behaviour": float(np.mean(batch.behaviour_logprobs_N - current_N, dtype=np.float64)),
        }


def combine(steps: Sequence[UpdateStats]) -> UpdateStats:
    """Counts add up and metrics average over the optimizer steps that have them; norms by their root mean square.

    The gap between engine and trainer is that of the first step: later ones have moved the policy on purpose.
    """
    metrics = {}
    for name in steps[0].metrics:
        values = np.array([step.metrics[name] for step in steps if name in step.metrics])
        if name.endswith("_norm"):
            metrics[name] = float(np.sqrt(np.mean(values**2)))
        else:
            metrics[name] = float(values[0] if name.startswith("policy/logprob_gap") else values.mean())
    return UpdateStats(
        optimizer_steps=sum(step.optimizer_steps for step in steps),
        backward_passes=sum(step.backward_passes for step in steps),
        metrics=metrics,
    )
