"""The arithmetic of one rollout batch: ranks, mini-batches, micro-batches, optimizer steps.

Nothing is rounded. A batch that does not divide is an error that names both numbers and the nearest
sizes that do, before anything heavy is started.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from harness.errors import InputError

LARGEST_TRAIN_BATCH = 2**31 - 1
Cadence = Literal["one_step_per_batch", "one_step_per_micro_batch"]


@dataclass(frozen=True)
class BatchShape:
    """One rollout batch, fully resolved. All sizes count responses.

    `mini` and `micro` are per rank. `optimizer_steps` and `backward_passes` are those of one rank in
    one rollout batch; every rank takes the same number. One optimizer step covers mini * ranks responses.
    """

    num_prompts: int
    group_size: int
    train_batch: int
    ranks: int
    per_rank: int
    mini: int
    micro: int
    gradient_accumulation_steps: int
    optimizer_steps: int
    backward_passes: int
    gen_batch: int


def resolve_batch(
    num_prompts: int,
    group_size: int,
    *,
    ranks: int = 1,
    mini_batch_size: int | None = None,
    micro_batch_size_per_gpu: int | None = None,
    gen_batch: int | None = None,
    cadence: Cadence = "one_step_per_batch",
) -> BatchShape:
    """Resolve what was left open and check that everything divides.

    - train_batch = num_prompts * group_size;  per_rank = train_batch / ranks, whole.
    - An unset mini-batch is the rank's whole batch, or the micro-batch under the cadence
      `one_step_per_micro_batch`. An unset micro-batch is the mini-batch.
    - With the mini-batch unset under `one_step_per_batch` the micro-batch is a ceiling: the largest
      divisor of per_rank not above it is taken. It is a memory knob and changes no result.
    - gradient_accumulation_steps = mini / micro, whole;  optimizer_steps = per_rank / mini, whole.

    Raises InputError, with the nearest valid sizes, where something does not divide.

    >>> shape = resolve_batch(2, 5, ranks=2, mini_batch_size=5, micro_batch_size_per_gpu=1)
    >>> shape.train_batch, shape.per_rank, shape.gradient_accumulation_steps, shape.optimizer_steps
    (10, 5, 5, 1)
    >>> resolve_batch(15, 8, micro_batch_size_per_gpu=64).micro  # the largest divisor of 120 up to 64
    60
    """
    _require_positive(
        {
            "num_prompts": num_prompts,
            "group_size": group_size,
            "ranks": ranks,
            "mini_batch_size": mini_batch_size,
            "micro_batch_size_per_gpu": micro_batch_size_per_gpu,
            "gen_batch": gen_batch,
        }
    )
    train_batch = num_prompts * group_size
    if train_batch > LARGEST_TRAIN_BATCH:
        raise InputError(
            f"batch.num_prompts {num_prompts} x batch.group_size {group_size} = {train_batch} responses; "
            f"needs at most {LARGEST_TRAIN_BATCH}"
        )
    per_rank = _split_over_ranks(num_prompts, group_size, ranks, micro_batch_size_per_gpu)
    if mini_batch_size is not None:
        mini = _checked_mini(mini_batch_size, per_rank)
        micro = _checked_micro(micro_batch_size_per_gpu or mini, mini)
    elif cadence == "one_step_per_batch":
        mini = per_rank
        micro = max(d for d in divisors(per_rank) if d <= (micro_batch_size_per_gpu or per_rank))
    else:
        if micro_batch_size_per_gpu is None:
            raise InputError(
                "batch.micro_batch_size_per_gpu: unset; the cadence one_step_per_micro_batch needs it, "
                f"because it decides the optimizer steps (a divisor of the rank's {per_rank} responses)"
            )
        mini = micro = _checked_mini(micro_batch_size_per_gpu, per_rank, field="micro_batch_size_per_gpu")
    return BatchShape(
        num_prompts=num_prompts,
        group_size=group_size,
        train_batch=train_batch,
        ranks=ranks,
        per_rank=per_rank,
        mini=mini,
        micro=micro,
        gradient_accumulation_steps=mini // micro,
        optimizer_steps=per_rank // mini,
        backward_passes=per_rank // micro,
        gen_batch=train_batch if gen_batch is None else gen_batch,
    )


def divisors(n: int) -> list[int]:
    """The divisors of n, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def nearest(values: list[int], wanted: int) -> str:
    """The nearest of the ascending `values` on either side of `wanted`, in words.

    >>> nearest([1, 2, 4, 5, 10], 3)
    '2 or 4'
    >>> nearest([1, 5], 7)
    '5'
    """
    below = [v for v in values if v <= wanted][-1:]
    above = [v for v in values if v > wanted][:1]
    return " or ".join(str(v) for v in below + above)


def _require_positive(sizes: dict[str, int | None]) -> None:
    for field, size in sizes.items():
        if size is not None and size < 1:
            raise InputError(f"{field}: {size}; needs a whole number of at least 1")


def _split_over_ranks(num_prompts: int, group_size: int, ranks: int, micro: int | None) -> int:
    train_batch = num_prompts * group_size
    if train_batch % ranks == 0:
        return train_batch // ranks
    asked = f"batch.num_prompts {num_prompts} x batch.group_size {group_size} = {train_batch} responses"
    if train_batch < ranks:
        fill = f", {ranks * micro} to fill micro_batch_size_per_gpu {micro} on each" if micro and micro > 1 else ""
        raise InputError(f"{asked} are too few for execution.ranks {ranks}; needs at least {ranks}{fill}")
    below, above = (train_batch // ranks * ranks, (train_batch // ranks + 1) * ranks)
    raise InputError(
        f"{asked} do not divide over execution.ranks {ranks} ({train_batch} % {ranks} = {train_batch % ranks}); "
        f"the nearest that do are {below} and {above}{_prompts_hint(num_prompts, group_size, ranks)}"
    )


def _prompts_hint(num_prompts: int, group_size: int, ranks: int) -> str:
    """The prompts that divide at this group size: multiples of ranks / gcd(ranks, group_size)."""
    unit = ranks // math.gcd(ranks, group_size)
    below = num_prompts // unit * unit
    choices = [n for n in (below, below + unit) if n > 0]
    return f" (num_prompts {' or '.join(map(str, choices))} at this group_size)"


def _checked_mini(mini: int, per_rank: int, field: str = "mini_batch_size") -> int:
    if per_rank % mini:
        raise InputError(
            f"batch.{field}: {mini} does not divide the rank's {per_rank} responses "
            f"({per_rank} % {mini} = {per_rank % mini}); the nearest that do: {nearest(divisors(per_rank), mini)}"
        )
    return mini


def _checked_micro(micro: int, mini: int) -> int:
    if mini % micro:
        raise InputError(
            f"batch.micro_batch_size_per_gpu: {micro} does not divide batch.mini_batch_size {mini} into whole backward "
            f"passes ({mini} % {micro} = {mini % micro}); the nearest that do: {nearest(divisors(mini), micro)}"
        )
    return micro
