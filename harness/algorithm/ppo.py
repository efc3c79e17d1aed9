"""PPO (Schulman et al. 1707.06347) on responses: a critic's values, GAE over tokens, the reward on the last one."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from harness.algorithm.advantages import gae, on_last_token, whiten
from harness.algorithm.algorithm import Credit, Feedback, Needs, PolicyGradient
from harness.algorithm.config import ActorCriticConfig, PpoConfig
from harness.algorithm.losses import ClippedValueLoss
from harness.training.trainer import ValueLoss

Config = TypeVar("Config", bound=ActorCriticConfig)


class ActorCritic(PolicyGradient[Config]):
    """Generalised advantage estimates (`gae`), and a critic trained towards advantage + value (`ClippedValueLoss`).

    The reward of a response sits on its last generated token. With kl_reward_coef every token also pays
    kl_reward_coef * (behaviour - ref), an unbiased estimate of the KL to the reference (Ziegler et al. 1909.08593).
    The critic's targets are those of the advantages before whitening; its loss has the weights of the policy's.
    """

    @property
    def needs(self) -> Needs:
        own = super().needs
        return replace(own, reference=own.reference or self.config.kl_reward_coef > 0, critic=True)

    @property
    def value_loss(self) -> ValueLoss:
        return ClippedValueLoss(self.config.value_clip)

    def credit(self, feedback: Feedback) -> Credit:
        tokens, values_N = feedback.tokens, feedback.values_N
        assert values_N is not None
        rewards_N = on_last_token(feedback.rewards_PG.reshape(-1), tokens.lengths_S)
        if self.config.kl_reward_coef > 0:
            assert feedback.ref_logprobs_N is not None
            rewards_N -= self.config.kl_reward_coef * (tokens.behaviour_logprobs_N - feedback.ref_logprobs_N)
        advantages_N = gae(rewards_N, values_N, tokens.lengths_S, self.config.gamma, self.config.gae_lambda)
        return Credit(self.whitened(advantages_N, tokens.lengths_S), advantages_N + values_N)

    def whitened(self, advantages_N: np.ndarray, lengths_S: np.ndarray) -> np.ndarray:
        """The advantages as the loss sees them, shape [N]."""
        raise NotImplementedError


class Ppo(ActorCritic[PpoConfig]):
    """Advantages whitened by their rollout batch's moments (`whiten`), with the surrogate `ClippedPolicyLoss`."""

    def whitened(self, advantages_N: np.ndarray, lengths_S: np.ndarray) -> np.ndarray:
        if self.config.whiten == "none":
            return advantages_N
        return whiten(advantages_N, shift_mean=self.config.whiten == "mean_and_std")
