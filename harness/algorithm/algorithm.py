"""What an algorithm is to the loop: it judges the responses of a rollout batch and brings a loss.

Every algorithm goes through the same stages and counters. What one of them needs beside sampled responses and their
rewards it says in `needs`; what it remembers from batch to batch is in its state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from harness.algorithm.config import PolicyConfig
from harness.algorithm.losses import ClippedPolicyLoss, DecoupledPolicyLoss, loss_weights
from harness.training.trainer import Loss, ValueLoss
from harness.types import TokenBatch


@dataclass(frozen=True)
class Needs:
    """What the loop has to provide.

    greedy_responses  greedy responses to each prompt: generated and scored, never trained on
    reference         log-probabilities of the frozen policy that the trial starts from
    critic            values of the response tokens
    proximal_samples  log-probabilities of a moving average of the policy with this mean age; None: of none
    recomputed        log-probabilities of the policy as it stands before the first step, as the proximal ones
    refill_rounds     groups with unequal rewards only; at most so many rounds replace the others; None: all groups
    """

    greedy_responses: int = 0
    reference: bool = False
    critic: bool = False
    proximal_samples: float | None = None
    recomputed: bool = False
    refill_rounds: int | None = None


@dataclass(frozen=True)
class Feedback:
    """What an algorithm judges the responses by: P prompts with G sampled responses each, N tokens.

    greedy_rewards_P, ref_logprobs_N and values_N are there where `needs` asks for them.
    """

    rewards_PG: np.ndarray
    tokens: TokenBatch
    greedy_rewards_P: np.ndarray | None = None
    ref_logprobs_N: np.ndarray | None = None
    values_N: np.ndarray | None = None


@dataclass(frozen=True)
class Credit:
    """The judgement: an advantage for each token, and for a critic the value it should have had."""

    advantages_N: np.ndarray
    value_targets_N: np.ndarray | None = None


class Algorithm(Protocol):
    """One algorithm with its settings."""

    @property
    def needs(self) -> Needs: ...

    @property
    def loss(self) -> Loss: ...

    @property
    def value_loss(self) -> ValueLoss | None:
        """The critic's loss; None without a critic."""

    def credit(self, feedback: Feedback) -> Credit:
        """Judge the responses of a rollout batch. Called once for each, in order: moving averages move here."""

    def loss_weights(self, lengths_S: np.ndarray) -> np.ndarray:
        """Weight of each token, shape [N], in one optimizer step over responses of these lengths."""

    def state(self) -> dict[str, Any]:
        """What a resumed trial needs to go on bit for bit."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up a state() again."""


Config = TypeVar("Config", bound=PolicyConfig)


class PolicyGradient(Generic[Config]):
    """An algorithm with one advantage a response, PPO's clipped loss and no memory; the others change parts of it."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def needs(self) -> Needs:
        return Needs(reference=self.config.kl_coef > 0, recomputed=self.config.correction != "none")

    @property
    def loss(self) -> Loss:
        config = self.config
        if config.correction == "none":
            return ClippedPolicyLoss(config.clip_low, config.clip_high, config.kl_coef)
        cap = config.correction_cap if config.correction == "truncated" else math.inf
        return DecoupledPolicyLoss(config.clip_low, config.clip_high, config.kl_coef, cap)

    @property
    def value_loss(self) -> ValueLoss | None:
        return None

    def credit(self, feedback: Feedback) -> Credit:
        advantages_PG = self.advantages(feedback)
        return Credit(np.repeat(advantages_PG.reshape(-1), feedback.tokens.lengths_S))

    def advantages(self, feedback: Feedback) -> np.ndarray:
        """Advantage of each response, shape [P, G]."""
        raise NotImplementedError

    def loss_weights(self, lengths_S: np.ndarray) -> np.ndarray:
        return loss_weights(lengths_S, self.config.loss_average, self.config.constant_tokens)

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        pass
