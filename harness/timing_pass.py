"""The order of the timing pass: arms interleaved, one at a time, so that a slow minute hits them all alike."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.seeds import hash64
from harness.tracking.jsonl import JsonlFile, read_objects


@dataclass(frozen=True)
class Round:
    """Every arm measured once. Round 0 warms up and is discarded."""

    number: int
    arms: tuple[str, ...]


def rounds_to_do(path: Path, arms: Sequence[str], rounds: int) -> list[Round]:
    """The rounds 1 .. `rounds` that timing.jsonl does not have for all arms, after a warm-up; none when complete.

    A round is measured whole: one that misses an arm is done again for all, and its last lines count.
    Each has its own fixed shuffle of the arms.
    """
    measurements, _ = read_objects(path)
    # As text: a damaged line may hold anything.
    measured = {(str(line.get("round")), str(line.get("arm"))) for line in measurements}
    missing = [number for number in range(1, rounds + 1) if any((str(number), arm) not in measured for arm in arms)]
    return [Round(number, shuffled(arms, number)) for number in ([0, *missing] if missing else [])]


def shuffled(arms: Sequence[str], number: int) -> tuple[str, ...]:
    """The arms in the fixed order of their round."""
    order = np.argsort(hash64(0, "timing order", number, np.arange(len(arms))))
    return tuple(arms[place] for place in order)


def keep_measurement(path: Path, round_: Round, measurement: dict[str, Any]) -> None:
    """Append what time_arm returned, as one line."""
    with closing(JsonlFile(path)) as file:
        file.append({"round": round_.number, **measurement})
