"""Where tokens land in the rows of a forward pass, by hand."""

from __future__ import annotations

import numpy as np

from harness.training.packing import pack_rows
from harness.types import TrainBatch


def batch(prompts: list[list[int]], owners: list[int], responses: list[list[int]]) -> TrainBatch:
    tokens = np.concatenate([np.array(response) for response in responses])
    return TrainBatch(
        prompt_ids=tuple(np.array(prompt) for prompt in prompts),
        prompt_of_response_S=np.array(owners),
        lengths_S=np.array([len(response) for response in responses]),
        token_ids_N=tokens,
        behaviour_logprobs_N=np.zeros(len(tokens), dtype=np.float32),
        advantages_N=np.ones(len(tokens)),
        loss_weights_N=np.ones(len(tokens)),
    )


def test_a_row_holds_a_prompt_once_and_its_responses_without_padding() -> None:
    packed = pack_rows(batch([[7, 8], [9]], [0, 0, 1], [[1, 2, 3], [4, 5], [6]]), longest_shared_row=100)
    # Last tokens (3, 5, 6) are only predicted. The shorter prompt is padded on the left.
    assert packed.input_ids_RL.tolist() == [[7, 8, 1, 2, 4], [0, 9, 0, 0, 0]]
    assert packed.position_ids_RL.tolist() == [[0, 1, 2, 3, 2], [0, 0, 0, 0, 0]]
    assert packed.segment_RL.tolist() == [[0, 0, 1, 1, 2], [-1, 0, -1, -1, -1]]
    assert packed.logits_to_keep == 4
    assert packed.row_N.tolist() == [0, 0, 0, 0, 0, 1]
    # Counted from the prompts' last column: 1 from it, 2 from 1, 3 from 2; 4 from it again, 5 from 4; 6 from it.
    assert packed.column_N.tolist() == [0, 1, 2, 0, 3, 0]


def test_past_the_limit_a_response_has_a_row_of_its_own() -> None:
    responses = [[1, 2, 3], [4, 5], [6, 1]]
    assert pack_rows(batch([[7, 8]], [0, 0, 0], responses), longest_shared_row=0).input_ids_RL.shape[0] == 3
    # Prompt 2 + inputs 2 + 1 = 5 tokens fit; one more response does not.
    packed = pack_rows(batch([[7, 8]], [0, 0, 0], responses), longest_shared_row=5)
    assert packed.input_ids_RL.tolist() == [[7, 8, 1, 2, 4], [7, 8, 6, 0, 0]]
