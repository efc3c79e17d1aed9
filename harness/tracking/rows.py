"""What mirrors of metrics.jsonl hold: one row for each record, in an order that no resume changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.config import TrialConfig

Record = Mapping[str, Any]


def key_of(record: Record) -> tuple[str, int]:
    """What one record has in common with those that are computed again in its place."""
    return record["kind"], record["samples_trained"]


def in_order(records: Iterable[Record]) -> list[Record]:
    """One record for each (kind, samples_trained): where the first stood, with what the last holds.

    An append to the file adds to the end at most. So a mirror that holds n rows holds the first n of these, however
    often it was left and joined again.

    >>> first = [{"kind": "eval", "samples_trained": n} for n in (0, 64, 128)]
    >>> [r["samples_trained"] for r in in_order([*first, first[1], {"kind": "eval", "samples_trained": 192}])]
    [0, 64, 128, 192]
    """
    return list({key_of(record): record for record in records}.values())


def repeats(config: TrialConfig) -> bool:
    """Whether a record of the trial that is computed again is the same."""
    return config.execution.mode == "synchronous"


def every_attempt(records: Iterable[Record]) -> list[Record]:
    """All records as they stand in the file, each with its `attempt`, which counts how often the records went back.

    For trials that do not repeat their records: what was made again is another row, and the last attempt's counts.

    >>> [(r["samples_trained"], r["attempt"]) for r in every_attempt(
    ...     [{"kind": "train", "samples_trained": n} for n in (64, 128, 128, 192)])]
    [(64, 1), (128, 1), (128, 2), (192, 2)]
    """
    attempts = Attempts()
    return [{**record, "attempt": attempts.of(record)} for record in records]


class Attempts:
    """Numbers records as they are written. An attempt that goes on where the one before it ended is one with it."""

    def __init__(self, earlier: Iterable[Record] = ()) -> None:
        self.last, self.number = (-1, False), 1
        for record in earlier:
            self.of(record)

    def of(self, record: Record) -> int:
        """The attempt of the next record; an evaluation follows the update that it scores."""
        place = record["samples_trained"], record["kind"] == "eval"
        self.number += place <= self.last
        self.last = place
        return self.number


def row_of(record: Record) -> dict[str, float]:
    """Everything of a record that is a number, in one flat row with samples_trained.

    >>> row_of({"kind": "eval", "samples_trained": 64, "metrics": {"eval/score": 0.5}, "seconds": {"eval": 0.25}})
    {'samples_trained': 64, 'eval/score': 0.5, 'seconds/eval': 0.25}
    """
    row: dict[str, float] = {}
    for name, value in record.items():
        if name == "metrics":
            row.update(value)
        elif isinstance(value, Mapping):
            row.update({f"{name}/{key}": number for key, number in value.items()})
        elif isinstance(value, int | float):
            row[name] = value
    return row


def summary_of(records: Iterable[Record]) -> dict[str, float]:
    """Of a whole trial: root mean square of each gradient norm, and samples per second of all its updates.

    >>> def train(n, norm): return {"kind": "train", "samples_trained": n, "metrics": {"grad/actor_norm": norm}}
    >>> summary_of([train(64, 3.0), train(128, 4.0)])
    {'grad/actor_norm_rms': 3.5355339059327378}
    """
    summary: dict[str, float] = {}
    train = [record for record in records if record["kind"] == "train"]
    for name in ("grad/actor_norm", "grad/critic_norm"):
        norms = [record["metrics"][name] for record in train if name in record["metrics"]]
        if norms:
            summary[f"{name}_rms"] = (sum(norm**2 for norm in norms) / len(norms)) ** 0.5
    timed = [record for record in train if "seconds" in record and "num_prompts" in record and "group_size" in record]
    spent_s = sum(sum(record["seconds"].values()) for record in timed)
    if spent_s > 0:
        summary["samples_per_s"] = sum(record["num_prompts"] * record["group_size"] for record in timed) / spent_s
    return summary
