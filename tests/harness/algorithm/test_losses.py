"""Losses by hand, and denominators that no split can change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.algorithm.losses import (
    ClippedPolicyLoss,
    ClippedValueLoss,
    ClippedWeightLoss,
    DecoupledPolicyLoss,
    SequencePolicyLoss,
    loss_weights,
)
from harness.training.trainer import TokenTensors, ValueTensors


def tokens(
    current: list[float], behaviour: list[float], advantages: list[float], ref: list[float] | None = None
) -> TokenTensors:
    return TokenTensors(
        torch.tensor(current, requires_grad=True),
        torch.tensor(behaviour),
        torch.tensor(advantages),
        None if ref is None else torch.tensor(ref),
        torch.tensor([len(current)]),
    )


def test_on_fresh_data_the_gradient_is_minus_the_advantage() -> None:
    batch = tokens([-1.0, -2.0], [-1.0, -2.0], [2.0, -0.5])
    ClippedPolicyLoss(0.2, 0.2)(batch).loss_N.sum().backward()
    assert batch.current_N.grad.tolist() == [-2.0, 0.5]


def test_the_clip_binds_only_where_it_makes_the_objective_smaller() -> None:
    # ratios 1.5 and 0.5; A=+1: min(1.5, 1.3)=1.3 and min(0.5, 0.9)=0.5; A=-1: min(-1.5, -1.3)=-1.5, min(-0.5, -0.9)=-0.9
    log_ratios = [float(np.log(1.5)), float(np.log(0.5))] * 2
    batch = tokens(log_ratios, [0.0] * 4, [1.0, 1.0, -1.0, -1.0])
    result = ClippedPolicyLoss(clip_low=0.1, clip_high=0.3)(batch)
    torch.testing.assert_close(result.loss_N, torch.tensor([-1.3, -0.5, 1.5, 0.9]))
    assert result.diagnostics["policy/clip_frac"].tolist() == [1.0, 0.0, 0.0, 1.0]
    result.loss_N.sum().backward()
    assert batch.current_N.grad[0] == 0 and batch.current_N.grad[3] == 0


def test_the_kl_term_is_zero_at_the_reference_and_positive_beside_it() -> None:
    # d = ref - current = log 2: exp(d) - d - 1 = 1 - log 2
    batch = tokens([0.0, 0.0], [0.0, 0.0], [0.0, 0.0], ref=[0.0, float(np.log(2))])
    result = ClippedPolicyLoss(0.2, 0.2, kl_coef=0.1)(batch)
    torch.testing.assert_close(result.loss_N, torch.tensor([0.0, 0.1 * (1 - np.log(2))], dtype=torch.float32))


def test_the_decoupled_loss_is_the_clipped_one_where_the_proximal_policy_sampled() -> None:
    batch = tokens([-1.0, -2.0], [-1.3, -1.6], [2.0, -0.5])
    decoupled = DecoupledPolicyLoss(0.2, 0.2)(replace(batch, proximal_N=batch.behaviour_N))
    torch.testing.assert_close(decoupled.loss_N, ClippedPolicyLoss(0.2, 0.2)(batch).loss_N)


def test_the_decoupled_loss_corrects_for_who_sampled_and_clips_around_the_proximal_policy() -> None:
    # behaviour 1/2, proximal 1/4, current 1/3: weight 1/2, ratio 4/3 -> clipped at 1.2; -(1/2 * 1.2) = -.6.
    # A clip around the behaviour policy would not bind (2/3 and A = 1), nor leave the token without a gradient.
    batch = tokens([float(np.log(1 / 3))], [float(np.log(1 / 2))], [1.0])
    result = DecoupledPolicyLoss(0.2, 0.2)(replace(batch, proximal_N=torch.log(torch.tensor([0.25]))))
    result.loss_N.sum().backward()
    assert result.loss_N.item() == pytest.approx(-0.6)
    assert batch.current_N.grad.item() == 0 and result.diagnostics["policy/clip_frac"].item() == 1
    with pytest.raises(ValueError, match="proximal"):
        DecoupledPolicyLoss(0.2, 0.2)(batch)


def test_the_sequence_ratio_is_the_geometric_mean_and_clips_whole_responses() -> None:
    # Token ratios 2 and 1/2: sequence ratio 1, nothing clips. Ratios 2 and 2: 2, both tokens clip at 1.3.
    batch = tokens([float(np.log(2)), float(np.log(0.5)), float(np.log(2)), float(np.log(2))], [0.0] * 4, [1.0] * 4)
    batch = replace(batch, lengths_S=torch.tensor([2, 2]))
    result = SequencePolicyLoss(0.3, 0.3)(batch)
    torch.testing.assert_close(result.loss_N, torch.tensor([-1.0, -1.0, -1.3, -1.3]))
    (result.loss_N * torch.from_numpy(loss_weights(np.array([2, 2]), "sample"))).sum().backward()
    # Mean over 2 responses of ratio * A: d/d(log-prob) = ratio * A / length / 2 = 1/4.
    torch.testing.assert_close(batch.current_N.grad, torch.tensor([-0.25, -0.25, 0.0, 0.0]))


def test_a_clipped_weight_keeps_the_gradient_of_its_token() -> None:
    # ratios 1.5, 0.5 and A = 1, -1: weights 1.2 and 0.5; the gradient is -weight * A, also where the clip binds.
    batch = tokens([float(np.log(1.5)), float(np.log(0.5))], [0.0, 0.0], [1.0, -1.0])
    result = ClippedWeightLoss(clip_low=1.0, clip_high=0.2)(batch)
    result.loss_N.sum().backward()
    torch.testing.assert_close(batch.current_N.grad, torch.tensor([-1.2, 0.5]))
    assert result.diagnostics["policy/clip_frac"].tolist() == [1.0, 0.0]


def test_a_value_that_moved_too_far_towards_its_target_has_no_gradient() -> None:
    # V_rollout 0, target 2, clip .5. V = 1: (.5-2)^2 > (1-2)^2, clipped. V = -1: (-1-2)^2 > (-.5-2)^2, pulled back.
    values = torch.tensor([1.0, -1.0], requires_grad=True)
    result = ClippedValueLoss(clip=0.5)(ValueTensors(values, torch.zeros(2), torch.full((2,), 2.0)))
    result.loss_N.sum().backward()
    torch.testing.assert_close(result.loss_N, torch.tensor([1.125, 4.5]))
    assert values.grad.tolist() == [0.0, -3.0]
    assert result.diagnostics["critic/clip_frac"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("lengths", "token_loss", "mean"),
    [
        ([100, 900], [0.5, 0.3], 0.32),  # not (.5 + .3)/2
        ([100, 300], [0.5, 0.2], 0.275),  # sums 50 and 60 over 400 tokens
        ([10, 30], [1.0, 0.0], 0.25),
    ],
)
def test_token_average_weighs_every_token_the_same(lengths: list[int], token_loss: list[float], mean: float) -> None:
    loss_N = np.repeat(token_loss, lengths)
    assert (loss_weights(np.array(lengths), "token") * loss_N).sum() == pytest.approx(mean)


def test_sample_average_weighs_every_response_the_same() -> None:
    loss_N = np.repeat([0.5, 0.3], [100, 900])
    assert (loss_weights(np.array([100, 900]), "sample") * loss_N).sum() == pytest.approx(0.4)


def test_constant_average_needs_its_constant() -> None:
    with pytest.raises(ValueError, match="constant_tokens"):
        loss_weights(np.array([3]), "constant")
