"""A critic's values: zero at first, of what precedes a token, the same however responses are packed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from harness.algorithm.losses import ClippedValueLoss, loss_weights
from harness.config import OptimizerConfig
from harness.training.batch import make_train_batch, reorder, token_batch
from harness.training.critic import TorchCritic
from harness.types import RolloutGroup, TrainBatch
from tests.harness.small import model_in_float64, ragged_groups


def critic(micro: int = 12, longest_shared_row: int = 1024, lr: float = 1e-2, head: float = 0.0) -> TorchCritic:
    """With `head` above 0 the value head gets random weights of that size."""
    made = TorchCritic(model_in_float64(), OptimizerConfig(lr=lr), micro, longest_shared_row)
    generator = torch.Generator().manual_seed(0)
    weight: Any = made.model.get_output_embeddings().weight
    weight.data += head * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return made


def train_batch(groups: list[RolloutGroup] | None = None) -> TrainBatch:
    tokens = token_batch(groups or ragged_groups())
    num_tokens = len(tokens.token_ids_N)
    return make_train_batch(
        tokens,
        np.zeros(num_tokens),
        lambda lengths_S: loss_weights(lengths_S, "token"),
        12,
        rollout_values_N=np.zeros(num_tokens),
        value_targets_N=np.linspace(0, 1, num_tokens),
    )


def test_values_start_at_zero_and_the_trunk_is_the_policys() -> None:
    made = critic()
    assert (made.values(train_batch()) == 0).all()
    trunk = dict(model_in_float64().named_parameters())
    shared = [
        name for name, weight in made.model.named_parameters() if name in trunk and torch.equal(weight, trunk[name])
    ]
    assert len(shared) >= len(trunk) - 1


@pytest.mark.parametrize(("micro", "longest_shared_row"), [(12, 0), (5, 1024), (1, 0), (6, 14)])
def test_values_do_not_depend_on_packing_and_padding(micro: int, longest_shared_row: int) -> None:
    expected = critic(head=1.0).values(train_batch())
    np.testing.assert_allclose(critic(micro, longest_shared_row, head=1.0).values(train_batch()), expected, rtol=1e-10)
    assert expected.std() > 0.1


def test_a_value_knows_the_prompt_and_the_tokens_before_its_own() -> None:
    batch = train_batch()
    made = critic(head=1.0)
    before = made.values(batch)
    # Another third token of the first response that has four: the values of its first three tokens stay.
    s = int(np.flatnonzero(batch.lengths_S >= 4)[0])
    start = int(batch.lengths_S[:s].sum())
    ids = batch.token_ids_N.copy()
    ids[start + 2] = 2 + (ids[start + 2] - 1) % 10
    changed = np.flatnonzero(~np.isclose(made.values(replace(batch, token_ids_N=ids)), before))
    assert changed.min() == start + 3 and changed.max() < start + batch.lengths_S[s]


def test_every_generated_token_has_one_value_and_nothing_else_has() -> None:
    # Rows of different lengths: none of the padding has a value, and the end token has its own.
    groups = [replace(group, rollouts=group.rollouts[:1]) for group in ragged_groups()]
    batch = train_batch(groups)
    assert len(critic(head=1.0).values(batch)) == batch.lengths_S.sum()
    loss = critic(head=1.0).step(batch, ClippedValueLoss(), 0.0)
    by_hand = 0.5 * np.mean((critic(head=1.0).values(batch) - batch.value_targets_N) ** 2)
    assert loss.metrics["loss/critic"] == pytest.approx(by_hand)


def test_steps_lower_the_loss_towards_the_targets() -> None:
    made, batch = critic(), train_batch()
    losses = [made.step(batch, ClippedValueLoss(), 1e-2).metrics["loss/critic"] for _ in range(30)]
    assert losses[-1] < losses[0] / 10


def test_the_order_of_responses_changes_no_step() -> None:
    order = np.random.default_rng(0).permutation(12)
    plain = critic(head=1.0).step(train_batch(), ClippedValueLoss(), 1e-2)
    other = critic(head=1.0).step(reorder(train_batch(), order), ClippedValueLoss(), 1e-2)
    assert other.metrics["grad/critic_norm"] == pytest.approx(plain.metrics["grad/critic_norm"], rel=1e-10)


def test_a_state_goes_on_where_it_was_taken() -> None:
    one, other, batch = critic(), critic(), train_batch()
    one.step(batch, ClippedValueLoss(), 1e-2)
    other.load_state(one.state())
    again = [made.step(batch, ClippedValueLoss(), 1e-2).metrics for made in (one, other)]
    assert again[0] == again[1]
