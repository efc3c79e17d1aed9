"""Norms of blocks are those of the blocks trained alone, and measuring them changes no step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.training.batch import split_batch
from harness.training.blocks import block_size
from harness.types import NoiseProbe, TrainBatch
from tests.harness.training.test_gradient import LOSS, batch_of, trainer_of


def norm_sq(batch: TrainBatch) -> float:
    stats = trainer_of(torch.float64, micro=12, longest_shared_row=1024).step(batch, LOSS, 1e-3)
    return stats.metrics["grad/actor_norm"] ** 2


def times(batch: TrainBatch, factor: float) -> TrainBatch:
    return replace(batch, loss_weights_N=batch.loss_weights_N * factor)


def test_each_block_is_measured_as_if_alone() -> None:
    batch = batch_of("sample")  # 3 groups of 4
    stats = trainer_of(torch.float64, micro=4, longest_shared_row=1024).step(batch, LOSS, 1e-3, NoiseProbe())
    assert stats.block_norms is not None and stats.block_norms.responses == 4 and stats.backward_passes == 3
    # Alone, a response weighs 1/4 instead of 1/12.
    alone = [norm_sq(times(block, 3)) for block in split_batch(batch, 4)]
    assert stats.block_norms.norms_sq_K == pytest.approx(alone, rel=1e-9)
    assert stats.metrics["grad/actor_norm"] ** 2 == pytest.approx(norm_sq(batch), rel=1e-9)


def test_signs_are_put_on_the_responses_of_the_first_block() -> None:
    batch = batch_of("sample")
    signs_S = np.array([1.0, -1.0, -1.0, 1.0] * 3)
    probe = NoiseProbe(signs_S)
    stats = trainer_of(torch.float64, micro=4, longest_shared_row=1024).step(batch, LOSS, 1e-3, probe)
    first = next(split_batch(batch, 4))
    flipped = replace(first, loss_weights_N=first.loss_weights_N * np.repeat(signs_S[:4], first.lengths_S))
    assert stats.block_norms is not None
    assert stats.block_norms.signed_sq == pytest.approx(norm_sq(times(flipped, 3)), rel=1e-9)


def test_a_probe_changes_no_step() -> None:
    plain, probed = (trainer_of(torch.float64, micro=4, longest_shared_row=1024) for _ in range(2))
    for _ in range(3):
        plain.step(batch_of(), LOSS, 1e-3)
        probed.step(batch_of(), LOSS, 1e-3, NoiseProbe(np.array([1.0, -1.0] * 6)))
    for one, other in zip(plain.parameters, probed.parameters, strict=True):
        assert torch.equal(one, other)


def test_blocks_are_equal_and_of_whole_groups_or_there_are_none() -> None:
    batch = batch_of()  # three groups of four: no two of them make a block that divides three
    assert [block_size(batch, micro) for micro in (12, 8, 5, 4, 3)] == [4, 4, 4, 4, None]
    two_groups, one_group = next(split_batch(batch, 8)), next(split_batch(batch, 4))
    assert block_size(two_groups, 64) == 4  # a single micro-batch is halved
    assert block_size(one_group, 64) is None
    unequal = next(split_batch(batch, 6))
    assert block_size(unequal, 64) is None


def test_adams_first_step_moves_every_live_coordinate_by_the_rate() -> None:
    # First step: lr * g / (|g| + eps). The token embeddings of unused tokens have no gradient: v = 0, below epsilon.
    trainer = trainer_of(torch.float64, micro=4, longest_shared_row=1024)
    gradients: list[torch.Tensor] = []
    trainer.optimizer.register_step_pre_hook(
        lambda *_: gradients.append(torch.cat([parameter.grad.flatten() for parameter in trainer.parameters]))
    )
    metrics = trainer.step(batch_of(), LOSS, 1e-3, NoiseProbe()).metrics
    magnitude = gradients[0].abs()
    expected = (1e-3 * magnitude / (magnitude + 1e-8)).norm().item()
    assert metrics["grad/actor_applied_norm"] == pytest.approx(expected, rel=1e-6)
    assert metrics["grad/actor_epsilon_frac"] == pytest.approx((magnitude < 1e-7).double().mean().item(), abs=1e-3)
    assert 0 < metrics["grad/actor_epsilon_frac"] < 0.5
