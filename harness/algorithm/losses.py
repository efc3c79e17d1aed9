"""Losses of one token, and the weights that average them. Pure functions of tensors and arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from harness.training.trainer import TokenLoss, TokenTensors, ValueTensors


@dataclass(frozen=True)
class ClippedPolicyLoss:
    """The clipped surrogate of PPO (Schulman et al. 1707.06347, eq. 7), per token, with an optional KL term.

        ratio = exp(current - behaviour)
        loss  = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A) + kl_coef * KL

    The centre of the trust region is the behaviour policy. Separate clips as in DAPO (Yu et al.
    2503.14476). KL to the reference policy is the non-negative estimator exp(d) - d - 1 with
    d = ref - current (Schulman 2020, "k3"), as in GRPO.

    With current = behaviour (one pass on fresh data) the ratio is 1 and the gradient is -A * grad(current),
    that of REINFORCE: clipping never binds.

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
        surrogate_N, is_clipped_N = _surrogate(ratio_N, tokens.advantages_N, self.clip_low, self.clip_high)
        return _with_kl(-surrogate_N, is_clipped_N, tokens, self.kl_coef)


@dataclass(frozen=True)
class DecoupledPolicyLoss:
    """The decoupled surrogate of PPO-EWMA (Hilton et al. 2110.00641, section 3.1), per token.

        loss = -weight * min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)
        with  ratio = exp(current - proximal),  weight = min(exp(proximal - behaviour), weight_cap)

    The weight corrects for who sampled; the clip keeps the policy near the proximal one, however old the data.
    With proximal = behaviour it is ClippedPolicyLoss. A cap on the weight bounds its variance and biases it (Espeholt
    et al. 1802.01561, section 4.1). KL to the reference as there.

    >>> current, behaviour, proximal = torch.zeros(1), torch.log(torch.tensor([0.5])), torch.log(torch.tensor([0.625]))
    >>> tokens = TokenTensors(current, behaviour, torch.ones(1), None, torch.tensor([1]), proximal)
    >>> DecoupledPolicyLoss(clip_low=0.2, clip_high=0.2)(tokens).loss_N  # 0.625 / 0.5 = 1.25, times min(1.6, 1.2)
    tensor([-1.5000])
    >>> DecoupledPolicyLoss(clip_low=0.2, clip_high=0.2, weight_cap=1.0)(tokens).loss_N
    tensor([-1.2000])
    """

    clip_low: float
    clip_high: float
    kl_coef: float = 0.0
    weight_cap: float = math.inf

    def __call__(self, tokens: TokenTensors) -> TokenLoss:
        if tokens.proximal_N is None:
            raise ValueError("the decoupled loss needs the log-probabilities of the proximal policy")
        weight_N = torch.exp(tokens.proximal_N - tokens.behaviour_N).clamp(max=self.weight_cap)
        ratio_N = torch.exp(tokens.current_N - tokens.proximal_N)
        surrogate_N, is_clipped_N = _surrogate(ratio_N, tokens.advantages_N, self.clip_low, self.clip_high)
        found = _with_kl(-weight_N * surrogate_N, is_clipped_N, tokens, self.kl_coef)
        weights = {"policy/correction_weight": weight_N, "policy/correction_weight_max": weight_N}
        return TokenLoss(found.loss_N, {**found.diagnostics, **weights})


@dataclass(frozen=True)
class SequencePolicyLoss:
    """The clipped surrogate of GSPO (Zheng et al. 2507.18071, eq. 5-7): one ratio a response.

        ratio_s = exp(mean over the tokens of s of (current - behaviour))      the likelihood ratio to the 1/length
        loss    = -min(ratio_s * A, clip(ratio_s, 1 - clip_low, 1 + clip_high) * A)

    on every token of s, so that the average `sample` gives the paper's mean over responses. KL as in ClippedPolicyLoss.

    >>> current, behaviour = torch.log(torch.tensor([4.0, 1.0, 1.5])), torch.zeros(3)  # ratios sqrt(4 * 1) and 1.5
    >>> tokens = TokenTensors(current, behaviour, torch.ones(3), None, torch.tensor([2, 1]))
    >>> SequencePolicyLoss(clip_low=0.2, clip_high=0.8)(tokens).loss_N
    tensor([-1.8000, -1.8000, -1.5000])
    """

    clip_low: float
    clip_high: float
    kl_coef: float = 0.0

    def __call__(self, tokens: TokenTensors) -> TokenLoss:
        log_ratio_N = tokens.current_N - tokens.behaviour_N
        ratio_S = torch.exp(torch.segment_reduce(log_ratio_N, "mean", lengths=tokens.lengths_S))
        ratio_N = ratio_S.repeat_interleave(tokens.lengths_S)
        surrogate_N, is_clipped_N = _surrogate(ratio_N, tokens.advantages_N, self.clip_low, self.clip_high)
        return _with_kl(-surrogate_N, is_clipped_N, tokens, self.kl_coef)


@dataclass(frozen=True)
class ClippedWeightLoss:
    """CISPO (MiniMax 2506.13585, eq. 4-5): REINFORCE with a clipped importance weight that carries no gradient.

        loss = -stop_gradient(clip(exp(current - behaviour), 1 - clip_low, 1 + clip_high)) * A * current

    No token loses its gradient to the clip. clip_low = 1 bounds the weight from above only, as the paper does. KL as
    in ClippedPolicyLoss.

    >>> current = torch.log(torch.tensor([0.5, 0.5])).requires_grad_()
    >>> tokens = TokenTensors(current, torch.log(torch.tensor([0.25, 0.5])), torch.ones(2), None, torch.tensor([2]))
    >>> ClippedWeightLoss(clip_low=1.0, clip_high=0.2)(tokens).loss_N.sum().backward()
    >>> current.grad
    tensor([-1.2000, -1.0000])
    """

    clip_low: float
    clip_high: float
    kl_coef: float = 0.0

    def __call__(self, tokens: TokenTensors) -> TokenLoss:
        ratio_N = torch.exp(tokens.current_N.detach() - tokens.behaviour_N)
        weight_N = ratio_N.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss_N = -weight_N * tokens.advantages_N * tokens.current_N
        return _with_kl(loss_N, weight_N != ratio_N, tokens, self.kl_coef)


@dataclass(frozen=True)
class ClippedValueLoss:
    """The critic's loss of each token: half the squared error, with PPO's optional clip of the value's move.

        loss = 1/2 (V - R)^2
        or     1/2 max((V - R)^2, (clip(V, V_rollout - clip, V_rollout + clip) - R)^2)     with `clip`

    R is the target (advantage + value of the rollout batch), V_rollout the value then.

    >>> values = ValueTensors(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]), torch.tensor([2.0, 2.0]))
    >>> ClippedValueLoss()(values).loss_N, ClippedValueLoss(clip=0.5)(values).loss_N  # (0.5 - 2)^2 / 2 = 1.125
    (tensor([0.5000, 2.0000]), tensor([1.1250, 2.0000]))
    """

    clip: float | None = None

    def __call__(self, values: ValueTensors) -> TokenLoss:
        error_sq_N = (values.values_N - values.targets_N) ** 2
        if self.clip is None:
            return TokenLoss(0.5 * error_sq_N, {})
        move_N = (values.values_N - values.rollout_values_N).clamp(-self.clip, self.clip)
        clipped_sq_N = (values.rollout_values_N + move_N - values.targets_N) ** 2
        is_clipped_N = clipped_sq_N > error_sq_N
        return TokenLoss(0.5 * torch.maximum(error_sq_N, clipped_sq_N), {"critic/clip_frac": is_clipped_N.float()})


def _surrogate(
    ratio_N: torch.Tensor, advantages_N: torch.Tensor, clip_low: float, clip_high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """min(ratio * A, clip(ratio) * A), and where the clip binds."""
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    surrogate_N = torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    return surrogate_N, surrogate_N < ratio_N * advantages_N


def _with_kl(loss_N: torch.Tensor, is_clipped_N: torch.Tensor, tokens: TokenTensors, kl_coef: float) -> TokenLoss:
    """The loss with the KL term where there is a reference policy, and its diagnostics."""
    diagnostics = {"policy/clip_frac": is_clipped_N.float()}
    if tokens.ref_N is not None:
        difference_N = tokens.ref_N - tokens.current_N
        kl_N = torch.exp(difference_N) - difference_N - 1
        loss_N = loss_N + kl_coef * kl_N
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
