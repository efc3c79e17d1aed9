"""Losses by hand, and denominators that no split can change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from harness.algorithm.losses import ClippedPolicyLoss, loss_weights
from harness.training.trainer import TokenTensors


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
