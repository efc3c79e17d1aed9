"""Losses of one token, and the weights that average them. Pure functions of tensors and arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from harness.training.trainer import TokenLoss, TokenTensors


@dataclass(frozen=True)
class ClippedPolicyLoss:
    """The clipped surrogate of PPO (Schulman et al. 1707.06347, eq. 7), per token, with an optional KL term.

        ratio = exp(current - behaviour)
        loss  = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) + kl_coef * KL

    The centre of the trust region is the behaviour policy. Separate clips as in DAPO (Yu et al.
    2503.14476). KL to the reference policy is the non-negative estimator exp(d) - d - 1 with
    d = ref - current (Schulman 2020, "k3"), as in GRPO.

    With current = behaviour (one pass on fresh data) the ratio is 1 and the gradient is -A * grad(current):

    >>> current, behaviour = torch.zeros(2), -torch.log(torch.tensor([1.5, 1.1]))
    >>> tokens = TokenTensors(current, behaviour, torch.ones(2), None, torch.tensor([2]))
    >>> ClippedPolicyLoss(clip_low=0.2, clip_high=0.2)(tokens).loss_N
    tensor([-1.2000, -1.1000])
    """

    clip_low: float
    clip_high: float
    kl_coef: float = 0.0

    def __call__(self, tokens: TokenTensors) -> TokenLoss:
        ratio_N = torch.exp(tokens.current_N - tokens.behaviour_N)
        clipped_N = ratio_N.clamp(1 - self.clip_low, 1 + self.clip_high)
        surrogate_N = torch.minimum(ratio_N * tokens.advantages_N, clipped_N * tokens.advantages_N)
        diagnostics = {"policy/clip_frac": (surrogate_N < ratio_N * tokens.advantages_N).float()}
        loss_N = -surrogate_N
        if tokens.ref_N is not None:
            difference_N = tokens.ref_N - tokens.current_N
            kl_N = torch.exp(difference_N) - difference_N - 1
            loss_N = loss_N + self.kl_coef * kl_N
            diagnostics["policy/ref_kl"] = kl_N.detach()
        return TokenLoss(loss_N, diagnostics)


def negative_log_likelihood(tokens: TokenTensors) -> TokenLoss:
    """Supervised loss of each token: -current."""
    return TokenLoss(-tokens.current_N, {})


def loss_weights(
    lengths_S: np.ndarray, average: Literal["token", "sample", "constant"], constant_tokens: int | None = None
) -> np.ndarray:
    """Weight of each token (shape [N], tokens laid end to end) in the loss of one optimizer step.

        token     1 / sum_s lengths[s]           every token counts the same (DAPO)
        sample    1 / (S * lengths[s])           every response counts the same (GRPO)
        constant  1 / (S * constant_tokens)      no division by length (Dr. GRPO)

    Denominators are those of the whole optimizer step, so any split into micro-batches or ranks sums
    to the same loss.

    >>> loss_weights(np.array([1, 3]), "token")
    array([0.25, 0.25, 0.25, 0.25])
    >>> loss_weights(np.array([1, 4]), "sample")
    array([0.5  , 0.125, 0.125, 0.125, 0.125])
    >>> loss_weights(np.array([1, 1]), "constant", 10)
    array([0.05, 0.05])
    """
    num_responses = len(lengths_S)
    if average == "token":
        per_response_S = np.full(num_responses, 1 / lengths_S.sum())
    elif average == "sample":
        per_response_S = 1 / (num_responses * lengths_S)
    else:
        if constant_tokens is None:
            raise ValueError("loss_average 'constant' needs constant_tokens")
        per_response_S = np.full(num_responses, 1 / (num_responses * constant_tokens))
    return np.repeat(per_response_S, lengths_S)
