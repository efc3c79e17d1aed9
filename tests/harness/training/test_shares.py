"""Every response goes to one rank, in order, and no rank waits for a micro-batch that another does not have."""

from __future__ import annotations

import numpy as np
import pytest

from harness.training.batch import consecutive
from harness.training.shares import deal, stand_in
from harness.types import TrainBatch
from tests.harness.training.test_gradient import batch_of


@pytest.mark.parametrize("num_responses", [1, 2, 5, 8, 12])
@pytest.mark.parametrize(("ranks", "micro", "unit"), [(1, 12, 1), (2, 3, 1), (3, 4, 4), (5, 2, 1), (2, 1, 1)])
def test_every_response_is_dealt_once_and_passes_are_equal(
    num_responses: int, ranks: int, micro: int, unit: int
) -> None:
    batch = consecutive(batch_of("sample"), 0, num_responses)
    shares = deal(batch, ranks, micro, unit)
    assert len(shares) == ranks and len({len(share.parts) for share in shares}) == 1
    real = [part for share in shares for part in share.parts[: share.real]]
    assert all(part.num_responses <= micro for part in real)
    for name in ("lengths_S", "token_ids_N", "advantages_N", "loss_weights_N"):
        assert np.array_equal(np.concatenate([getattr(part, name) for part in real]), getattr(batch, name))
    prompts = [prompt.tolist() for part in real for prompt in prompts_of(part)]
    assert prompts == [prompt.tolist() for prompt in prompts_of(batch)]
    idle = [part for share in shares for part in share.parts[share.real :]]
    assert all(part.num_responses == 1 and (part.loss_weights_N == 0).all() for part in idle)


def prompts_of(batch: TrainBatch) -> list[np.ndarray]:
    return [batch.prompt_ids[prompt] for prompt in batch.prompt_of_response_S]


def test_whole_blocks_stay_whole() -> None:
    # Twelve responses in three blocks of four for two ranks: two blocks and one.
    shares = deal(batch_of(), 2, 4, unit=4)
    assert [[part.num_responses for part in share.parts[: share.real]] for share in shares] == [[4, 4], [4]]


def test_a_rank_is_sent_no_prompt_of_others() -> None:
    for share in deal(batch_of(), 3, 4):
        assert [len(part.prompt_ids) for part in share.parts] == [1]
    assert len(stand_in(batch_of()).prompt_ids) == 1
