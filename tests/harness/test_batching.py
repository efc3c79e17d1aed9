"""The batch arithmetic: what divides is resolved, what does not is refused with both numbers."""

from __future__ import annotations

import pytest

from harness.batching import resolve_batch
from harness.errors import InputError


def refusal(*args: int, **kwargs: object) -> str:
    with pytest.raises(InputError) as caught:
        resolve_batch(*args, **kwargs)  # type: ignore[arg-type]
    return str(caught.value)


def test_worked_example_one_step_a_micro_batch() -> None:
    # 2 x 5 = 10 responses, 5 a rank; micro 1 is also the mini-batch: 5 steps of 1 backward pass
    shape = resolve_batch(2, 5, ranks=2, micro_batch_size_per_gpu=1, cadence="one_step_per_micro_batch")
    assert (shape.train_batch, shape.per_rank, shape.backward_passes) == (10, 5, 5)
    assert (shape.mini, shape.gradient_accumulation_steps, shape.optimizer_steps) == (1, 1, 5)


def test_worked_example_the_whole_rank_batch_in_one_step() -> None:
    shape = resolve_batch(2, 5, ranks=2, micro_batch_size_per_gpu=1, mini_batch_size=5)
    assert (shape.per_rank, shape.backward_passes) == (5, 5)
    assert (shape.gradient_accumulation_steps, shape.optimizer_steps) == (5, 1)


def test_worked_example_mini_of_three_is_refused() -> None:
    assert refusal(2, 5, ranks=2, micro_batch_size_per_gpu=1, mini_batch_size=3) == (
        "batch.mini_batch_size: 3 does not divide the rank's 5 responses (5 % 3 = 2); the nearest that do: 1 or 5"
    )


def test_unset_mini_is_the_whole_rank_batch_here() -> None:
    shape = resolve_batch(2, 5, ranks=2, micro_batch_size_per_gpu=1)
    assert (shape.mini, shape.gradient_accumulation_steps, shape.optimizer_steps) == (5, 5, 1)


def test_responses_over_ranks() -> None:
    assert resolve_batch(56, 1, ranks=7).per_rank == 8
    # 60 = 8 x 7 + 4
    assert refusal(60, 1, ranks=7) == (
        "batch.num_prompts 60 x batch.group_size 1 = 60 responses do not divide over execution.ranks 7 (60 % 7 = 4); "
        "the nearest that do are 56 and 63 (num_prompts 56 or 63 at this group_size)"
    )
    # in groups of 4 only multiples of 28 can be had: 14 x 4 = 56, 21 x 4 = 84
    assert "56 and 63 (num_prompts 14 or 21 at this group_size)" in refusal(15, 4, ranks=7)


def test_fewer_responses_than_ranks_names_what_is_enough() -> None:
    assert refusal(4, 1, ranks=8, micro_batch_size_per_gpu=4) == (
        "batch.num_prompts 4 x batch.group_size 1 = 4 responses are too few for execution.ranks 8; "
        "needs at least 8, 32 to fill micro_batch_size_per_gpu 4 on each"
    )


def test_micro_above_mini_is_refused_and_never_accumulation_zero() -> None:
    assert refusal(8, 1, mini_batch_size=2, micro_batch_size_per_gpu=4) == (
        "batch.micro_batch_size_per_gpu: 4 does not divide batch.mini_batch_size 2 into whole backward passes "
        "(2 % 4 = 2); the nearest that do: 2"
    )


def test_no_silent_tail() -> None:
    # divisors of 1000 around 256: 250 and 500
    assert refusal(125, 8, mini_batch_size=256) == (
        "batch.mini_batch_size: 256 does not divide the rank's 1000 responses (1000 % 256 = 232); "
        "the nearest that do: 250 or 500"
    )


def test_large_example_with_everything_set() -> None:
    # mini of 256 prompts = 256 x 5 responses / 8 ranks = 160 a rank and step; 5120 / 8 = 640 a rank
    shape = resolve_batch(1024, 5, ranks=8, mini_batch_size=160, micro_batch_size_per_gpu=80)
    assert (shape.train_batch, shape.per_rank, shape.optimizer_steps) == (5120, 640, 4)
    assert (shape.mini * shape.ranks, shape.gradient_accumulation_steps) == (1280, 2)


def test_steps_and_passes_are_counted_apart() -> None:
    shape = resolve_batch(16, 1, mini_batch_size=4, micro_batch_size_per_gpu=2)
    assert (shape.optimizer_steps, shape.backward_passes) == (4, 8)


@pytest.mark.parametrize(
    ("num_prompts", "ceiling", "micro"),
    [(8, 64, 64), (15, 64, 60), (1, 64, 8), (61, 7, 4), (8, None, 64)],  # of 64, 120, 8, 488 = 8 x 61 and 64 responses
)
def test_with_mini_unset_the_micro_batch_is_a_ceiling(num_prompts: int, ceiling: int | None, micro: int) -> None:
    shape = resolve_batch(num_prompts, 8, micro_batch_size_per_gpu=ceiling)
    assert shape.micro == micro
    assert shape.micro * shape.gradient_accumulation_steps == shape.mini == num_prompts * 8
    assert shape.optimizer_steps == 1


def test_the_cadence_by_micro_batch_rounds_nothing() -> None:
    # here the micro-batch decides the steps: the largest divisor of 120 up to 64 would change the learning
    assert "64 does not divide the rank's 120 responses (120 % 64 = 56); the nearest that do: 60 or 120" in refusal(
        15, 8, micro_batch_size_per_gpu=64, cadence="one_step_per_micro_batch"
    )
    assert "batch.micro_batch_size_per_gpu: unset" in refusal(15, 8, cadence="one_step_per_micro_batch")


def test_generation_batch_is_the_rollout_batch_unless_capped() -> None:
    assert resolve_batch(8, 8).gen_batch == 64
    assert resolve_batch(8, 8, gen_batch=16).gen_batch == 16


@pytest.mark.parametrize("size", [0, -4])
def test_sizes_are_at_least_one(size: int) -> None:
    assert refusal(size, 8) == f"num_prompts: {size}; needs a whole number of at least 1"
    assert refusal(8, 8, micro_batch_size_per_gpu=size).startswith("micro_batch_size_per_gpu")
