"""Same batch, same gradient: micro-batches, row layout and padding change nothing (invariant 1)."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
import torch

from harness.algorithm.losses import ClippedPolicyLoss, loss_weights
from harness.config import OptimizerConfig
from harness.training.batch import make_train_batch, token_batch
from harness.training.torch import TorchTrainer
from harness.training.trainer import Diverged, TokenLoss, TokenTensors
from harness.types import TrainBatch
from tests.harness.small import model, model_in_float64, ragged_groups

Average = Literal["token", "sample", "constant"]
LOSS = ClippedPolicyLoss(0.2, 0.2)


def batch_of(average: Average = "token") -> TrainBatch:
    tokens = token_batch(ragged_groups())
    advantages_N = np.repeat(np.random.default_rng(1).normal(size=12), tokens.lengths_S)
    return make_train_batch(tokens, advantages_N, lambda lengths_S: loss_weights(lengths_S, average, 5), 12)


def policy_of(dtype: torch.dtype) -> Any:
    return model_in_float64() if dtype == torch.float64 else model()


def trainer_of(dtype: torch.dtype, micro: int, longest_shared_row: int, **optimizer: float) -> TorchTrainer:
    settings = OptimizerConfig(lr=1e-3, **optimizer)
    return TorchTrainer(policy_of(dtype), settings, micro, temperature=0.7, longest_shared_row=longest_shared_row)


def gradient(dtype: torch.dtype, micro: int, longest_shared_row: int, average: Average) -> torch.Tensor:
    """The accumulated gradient that the optimizer is given."""
    trainer = trainer_of(dtype, micro, longest_shared_row)
    seen: list[torch.Tensor] = []
    trainer.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([parameter.grad.flatten() for parameter in trainer.parameters]))
    )
    trainer.step(batch_of(average), LOSS, 1e-3)
    return seen[0]


@cache
def naive_gradient(dtype: torch.dtype, average: Average) -> torch.Tensor:
    """The same gradient from plain forward passes, one response at a time."""
    policy, batch = policy_of(dtype), batch_of(average)
    starts = np.cumsum(batch.lengths_S) - batch.lengths_S
    loss = torch.zeros((), dtype=dtype)
    for s, (start, length) in enumerate(zip(starts, batch.lengths_S, strict=True)):
        prompt = batch.prompt_ids[batch.prompt_of_response_S[s]]
        response = batch.token_ids_N[start : start + length]
        logits = policy(torch.from_numpy(np.concatenate([prompt, response]))[None]).logits[0, len(prompt) - 1 : -1]
        chosen = torch.log_softmax(logits / 0.7, -1)[torch.arange(length), torch.from_numpy(response)]
        ratio = torch.exp(chosen - torch.from_numpy(batch.behaviour_logprobs_N[start : start + length]))
        advantage = torch.from_numpy(batch.advantages_N[start : start + length]).to(dtype)
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        loss = loss - (surrogate * torch.from_numpy(batch.loss_weights_N[start : start + length]).to(dtype)).sum()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


@pytest.mark.parametrize("average", ["token", "sample", "constant"])
@pytest.mark.parametrize(("micro", "longest_shared_row"), [(12, 1024), (12, 0), (1, 1024), (5, 1024), (6, 14)])
def test_every_split_and_layout_gives_the_naive_gradient(average: Average, micro: int, longest_shared_row: int) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        accumulated = gradient(dtype, micro, longest_shared_row, average)
        assert relative(accumulated, naive_gradient(dtype, average)) < tolerance


def test_counts_and_norm_before_clipping() -> None:
    plain = trainer_of(torch.float64, micro=5, longest_shared_row=1024).step(batch_of(), LOSS, 1e-3)
    clipped = trainer_of(torch.float64, micro=5, longest_shared_row=1024, clip_norm=1e-3).step(batch_of(), LOSS, 1e-3)
    assert (plain.optimizer_steps, plain.backward_passes) == (1, 3)  # 12 responses: 5 + 5 + 2
    assert plain.metrics["grad/actor_norm"] == pytest.approx(
        float(naive_gradient(torch.float64, "token").norm()), rel=1e-10
    )
    assert clipped.metrics["grad/actor_norm"] == plain.metrics["grad/actor_norm"]


def test_clipping_scales_the_gradient_that_the_optimizer_sees() -> None:
    trainer = trainer_of(torch.float64, micro=12, longest_shared_row=1024, clip_norm=0.25)
    seen: list[float] = []
    trainer.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.nn.utils.get_total_norm([p.grad for p in trainer.parameters]).item())
    )
    trainer.step(batch_of(), LOSS, 1e-3)
    assert seen[0] == pytest.approx(0.25)


def test_the_rate_applied_is_the_rate_given() -> None:
    # Adam's first step moves every coordinate with a gradient well above eps by lr.
    trainer = trainer_of(torch.float64, micro=12, longest_shared_row=1024)
    before = torch.cat([p.detach().flatten() for p in trainer.parameters])
    trainer.step(batch_of(), LOSS, 5e-4)
    moved = (torch.cat([p.detach().flatten() for p in trainer.parameters]) - before).abs()
    assert moved.max().item() == pytest.approx(5e-4, rel=1e-3)


def test_a_loss_that_is_not_finite_leaves_the_weights_alone() -> None:
    trainer = trainer_of(torch.float64, micro=12, longest_shared_row=1024)
    before = torch.cat([p.detach().flatten() for p in trainer.parameters])

    def broken(tokens: TokenTensors) -> TokenLoss:
        return TokenLoss(tokens.current_N * float("nan"), {})

    with pytest.raises(Diverged, match="loss is nan"):
        trainer.step(batch_of(), broken, 1e-3)
    assert torch.equal(torch.cat([p.detach().flatten() for p in trainer.parameters]), before)
    assert all(p.grad is None for p in trainer.parameters)
