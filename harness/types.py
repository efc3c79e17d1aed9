"""What the stages of a trial hand to one another.

Every type is frozen and complete when made: a later stage wraps an earlier one. Axis suffixes:
S responses, N response tokens of a batch laid end to end, T tokens of one response, L prompt tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Prompt:
    """One prompt of a task.

    `index` is its place in the prompt stream (training) or in the held-out list (evaluation).
    `answer` is the one right response, or None where a task accepts several. `solution` is whatever else the
    task's score wants to know of the prompt.
    """

    index: int
    text: str
    answer: str | None = None
    solution: Any = None


@dataclass(frozen=True)
class Rollout:
    """One response as the engine sampled it.

    token_ids_T (int64) includes the end token when the response has one. behaviour_logprobs_T
    (float32) are those of the tempered distribution the tokens were drawn from. `truncated` says
    that the length limit ended it; versions_T (int64) are the weights that sampled each token, counted in
    rollout batches trained on.
    """

    token_ids_T: np.ndarray
    behaviour_logprobs_T: np.ndarray
    truncated: bool
    versions_T: np.ndarray


@dataclass(frozen=True)
class RolloutGroup:
    """The responses to one prompt, in the order of their response index."""

    prompt: Prompt
    prompt_ids_L: np.ndarray
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True)
class ScoredGroups:
    """Groups with the reward of each of their R responses; of these the last `num_greedy` are greedy.

    num_errors, num_timeouts: rewards that are 0 because scoring failed or took too long; None where that cannot be.
    """

    groups: tuple[RolloutGroup, ...]
    rewards_PR: np.ndarray
    num_greedy: int = 0
    num_errors: int | None = None
    num_timeouts: int | None = None

    @property
    def sampled(self) -> tuple[RolloutGroup, ...]:
        """The groups without greedy responses."""
        if self.num_greedy == 0:
            return self.groups
        return tuple(replace(group, rollouts=group.rollouts[: -self.num_greedy]) for group in self.groups)

    @property
    def rewards_PG(self) -> np.ndarray:
        """Rewards of the sampled responses."""
        return self.rewards_PR[:, : self.rewards_PR.shape[1] - self.num_greedy]

    @property
    def greedy_rewards_P(self) -> np.ndarray | None:
        """Mean reward of the greedy responses; None without them."""
        return self.rewards_PR[:, -self.num_greedy :].mean(axis=1) if self.num_greedy else None

    def joined(self, other: ScoredGroups) -> ScoredGroups:
        """These groups and then the others."""
        return replace(
            self,
            groups=self.groups + other.groups,
            rewards_PR=np.concatenate([self.rewards_PR, other.rewards_PR]),
            num_errors=_sum(self.num_errors, other.num_errors),
            num_timeouts=_sum(self.num_timeouts, other.num_timeouts),
        )

    def selected(self, chosen_P: np.ndarray) -> ScoredGroups:
        """The groups where the boolean chosen_P says so."""
        groups = tuple(group for group, chosen in zip(self.groups, chosen_P, strict=True) if chosen)
        return replace(self, groups=groups, rewards_PR=self.rewards_PR[chosen_P])


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


@dataclass(frozen=True)
class TokenBatch:
    """Responses and their prompts as arrays: response s holds lengths_S[s] of the N tokens, laid end to end."""

    prompt_ids: tuple[np.ndarray, ...]
    prompt_of_response_S: np.ndarray
    lengths_S: np.ndarray
    token_ids_N: np.ndarray
    behaviour_logprobs_N: np.ndarray

    @property
    def num_responses(self) -> int:
        return len(self.lengths_S)


@dataclass(frozen=True)
class TrainBatch(TokenBatch):
    """The responses of one optimizer step, ready for a trainer that knows no algorithm.

    loss_weights_N carry the loss average with its *global* denominator, so that the loss is
    sum_n loss_weights_N[n] * token_loss_N[n] however the batch is split. The rest is None where nothing
    asks for it: log-probabilities of the reference and of the proximal policy, the critic's values of the
    rollout batch and what they are trained towards.
    """

    advantages_N: np.ndarray
    loss_weights_N: np.ndarray
    ref_logprobs_N: np.ndarray | None = None
    proximal_logprobs_N: np.ndarray | None = None
    rollout_values_N: np.ndarray | None = None
    value_targets_N: np.ndarray | None = None


@dataclass(frozen=True)
class NoiseProbe:
    """Asks an optimizer step to measure its noise as well; the step itself does not change.

    The step is taken in at least two micro-batches and reports the squared norm of each. With signs_S (1 or -1
    for each response) it also reports the squared norm of the first one's gradient with these signs, at the price
    of one more backward pass of that size.
    """

    signs_S: np.ndarray | None = None


@dataclass(frozen=True)
class BlockNorms:
    """Squared norms of the mean gradients of equal blocks of `responses` responses, each of whole groups."""

    responses: int
    norms_sq_K: tuple[float, ...]
    signed_sq: float | None


@dataclass(frozen=True)
class UpdateStats:
    """What one optimizer step reports. Gradient norms are those before clipping."""

    optimizer_steps: int
    backward_passes: int
    metrics: Mapping[str, float]
    block_norms: BlockNorms | None = None


@dataclass(frozen=True)
class StepRecord:
    """One line of metrics.jsonl (results/README.md). `extra` holds the fields only train records have."""

    kind: Literal["train", "eval"]
    samples_trained: int
    samples_generated: int
    optimizer_steps: int
    wall_s: float
    metrics: Mapping[str, float]
    extra: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The record as the flat object that metrics.jsonl holds."""
        return {
            "kind": self.kind,
            "samples_trained": self.samples_trained,
            "samples_generated": self.samples_generated,
            "optimizer_steps": self.optimizer_steps,
            "wall_s": self.wall_s,
            "metrics": dict(self.metrics),
            **self.extra,
        }


Status = Literal["completed", "diverged", "failed", "interrupted"]


@dataclass(frozen=True)
class TrialOutcome:
    """How a trial ended: the content of outcome.json, written last.

    seconds_apart: what the last attempt spent on `startup`, before its first step, and on `checkpoint`.
    """

    status: Status
    reason: str
    samples_trained: int
    samples_generated: int
    optimizer_steps: int
    wall_s: float
    attempts: int
    seconds_apart: Mapping[str, float] = field(default_factory=dict)
