"""The records of one trial, checked line by line: metrics.jsonl and outcome.json as columns of numbers.

Whatever a line holds, reading goes on: a line that is no record is skipped and counted, a value that is no number is
missing. Only whole, finite, non-negative sample counts make a record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.plan_file import LARGEST_COUNT, readable

PHASES = ("generate", "reward", "train", "sync", "undivided")
PHASE_COLUMNS = tuple(f"{phase}_s" for phase in PHASES)
COUNTERS = ("samples_trained", "samples_generated", "optimizer_steps", "wall_s")
TRAIN_FIELDS = ("step", "num_prompts", "group_size", "lr", "tokens_generated", "tokens_trained", "samples_dropped")
ROLES = ("engine", "trainer")
ROLE_COLUMNS = ("engine_busy_frac", "trainer_busy_frac", "in_flight_mean", "tail_frac")
IDENTITY = ("trial_id", "arm", "seed")
# A metric of one of these names would take the place of a column.
RESERVED = {*IDENTITY, *COUNTERS, *TRAIN_FIELDS, *PHASE_COLUMNS, *ROLE_COLUMNS, "samples", "samples_before"}
STATUSES = ("completed", "diverged", "failed", "interrupted")
# Beyond this no score, norm or time is meant; its square is still a number.
LARGEST = 1e100


def read_lines(path: Path) -> tuple[list[Any], int]:
    """(what the whole lines of a JSONL file hold, number of lines that are no JSON); ([], 0) without the file."""
    if not path.is_file():
        return [], 0
    values, bad = [], 0
    for line in path.read_bytes().splitlines():
        if line.strip():
            try:
                values.append(json.loads(line))
            except (ValueError, RecursionError):
                bad += 1
    return values, bad


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, {} where there is none."""
    try:
        value = readable(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float:
    """A number as it is; NaN for everything else: texts, true and false, what is missing, not finite or beyond reason.

    >>> number(3), number("3"), number(True), number(float("inf"))
    (3.0, nan, nan, nan)
    """
    if type(value) not in (int, float) or not -LARGEST < value < LARGEST:
        return math.nan
    return float(value)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number from 0 that floats hold exactly."""
    return type(value) in (int, float) and 0 <= value <= LARGEST_COUNT and value == int(value)


def outcome_of(path: Path, started: bool) -> tuple[str, str]:
    """(status, reason) of a trial from outcome.json and from whether it has records.

    status: one of STATUSES, "unreadable" where outcome.json is there but says none of them, "unfinished" or "missing"
    where it is not there.
    """
    if not path.is_file():
        return ("unfinished", "no outcome.json: still running or killed") if started else ("missing", "not started")
    outcome = read_object(path)
    status, reason = outcome.get("status"), outcome.get("reason")
    if not isinstance(status, str) or status not in STATUSES:
        return "unreadable", f"the status in outcome.json is none of {', '.join(STATUSES)}"
    return status, " ".join(reason.split()) if isinstance(reason, str) else ""


def records_by_kind(lines: Sequence[Any]) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """(the records of each kind in the order they were written, number of lines that are no record)."""
    kinds: dict[str, list[dict[str, Any]]] = {"train": [], "eval": []}
    for line in lines:
        if _is_record(line):
            kinds[line["kind"]].append(line)
    return kinds, len(lines) - sum(map(len, kinds.values()))


def _is_record(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("kind") in ("train", "eval")
        and is_count(value.get("samples_trained"))
        and isinstance(value.get("metrics"), dict)
        and isinstance(value.get("seconds", {}), dict)
    )


def latest(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of one kind that count, by samples_trained: an attempt replaces earlier records within its stretch.

    A step back in samples_trained is where a trial was resumed. What an earlier attempt wrote beyond the last record of
    the later one is kept.
    """
    if not records:
        return []
    samples_R = np.array([record["samples_trained"] for record in records], dtype=float)
    resumed = np.flatnonzero(np.diff(samples_R) <= 0) + 1
    low, high, kept = math.inf, -math.inf, []
    for attempt in reversed(np.split(np.arange(len(records)), resumed)):
        made_again = (samples_R[attempt] >= low) & (samples_R[attempt] <= high)
        kept.extend(attempt[~made_again])
        low, high = min(low, samples_R[attempt[0]]), max(high, samples_R[attempt[-1]])
    return [records[i] for i in sorted(kept, key=lambda i: samples_R[i])]


def table(records: list[dict[str, Any]], identity: Mapping[str, Any], kind: str) -> pd.DataFrame:
    """The records of one kind as a table, a column per metric; see analysis.Sweep for the columns."""
    columns: dict[str, Any] = {name: _column(records, name) for name in COUNTERS}
    if kind == "train":
        columns |= {name: _column(records, name) for name in TRAIN_FIELDS}
        seconds = [record.get("seconds", {}) for record in records]
        columns |= {f"{phase}_s": _column(seconds, phase, low=0.0) for phase in PHASES}
        columns |= _roles(records)
    metrics = [record["metrics"] for record in records]
    names = dict.fromkeys(name for found in metrics for name in found if name == readable(name))
    columns |= {name: _column(metrics, name) for name in names if name not in RESERVED}
    found = pd.DataFrame({**{k: np.full(len(records), v) for k, v in identity.items()}, **columns})
    return _with_sample_counts(found, _column(records, "samples_before", low=0.0)) if kind == "train" else found


def _roles(records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """What engine and trainer did of the time."""
    parts = {role: [part if isinstance(part := record.get(role), dict) else {} for record in records] for role in ROLES}
    busy = {f"{role}_busy_frac": _column(parts[role], "busy_frac", low=0.0) for role in ROLES}
    return busy | {name: _column(parts["engine"], name, low=0.0) for name in ROLE_COLUMNS[2:]}


def _column(rows: list[dict[str, Any]], name: str, low: float = -math.inf) -> np.ndarray:
    """Numbers of one field; what is missing, no number, not finite or below `low` is NaN."""
    values = np.array([number(row.get(name)) for row in rows], dtype=float)
    values[values < low] = math.nan
    return values


def _with_sample_counts(updates: pd.DataFrame, recorded_R: np.ndarray) -> pd.DataFrame:
    """Adds `samples_before` and `samples`, both NaN where the record before is missing (a gap in `step`).

    recorded_R: samples_before as far as the records say it themselves. Without steps every record is taken to follow
    the one before it.
    """
    trained_R, step_R = updates["samples_trained"].to_numpy(), updates["step"].to_numpy()
    before_R = np.concatenate([[0.0], trained_R[:-1]])[: len(trained_R)]
    if len(step_R) and np.isfinite(step_R).all():
        gap_R = np.diff(step_R, prepend=0.0 if step_R[0] <= 1 else -math.inf) > 1
        before_R[gap_R] = math.nan
    before_R = np.where(recorded_R < trained_R, recorded_R, before_R)
    return updates.assign(samples_before=before_R, samples=trained_R - before_R)


def read_timing(path: Path, arms: Sequence[str]) -> tuple[pd.DataFrame, int]:
    """(one row per round and arm, the last line of each; number of lines that are no measurement of one of the arms).

    Round 0 only warms up.
    """
    names = ["samples", "tokens", "updates"]
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    lines, bad = read_lines(path)
    for line in lines:
        measured = _measurement(line, arms)
        if measured is None:
            bad += 1
        elif measured["round"] > 0:
            rows[measured["round"], measured["arm"]] = measured
    columns = ["round", "arm", *names, *PHASE_COLUMNS]
    numbers = dict.fromkeys([*names, *PHASE_COLUMNS], float)
    return pd.DataFrame(list(rows.values()), columns=columns).astype(numbers), bad


def _measurement(line: Any, arms: Sequence[str]) -> dict[str, Any] | None:
    """The row of a line of timing.jsonl; None where it measures nothing: no samples, no time, no arm of the plan."""
    if not isinstance(line, dict) or not isinstance(line.get("seconds"), dict) or not is_count(line.get("round")):
        return None
    seconds = {f"{phase}_s": number(line["seconds"].get(phase, 0)) for phase in PHASES}
    counts = {name: number(line.get(name)) for name in ("samples", "tokens", "updates")}
    timed = all(value >= 0 for value in seconds.values()) and sum(seconds.values()) > 0
    if line.get("arm") not in arms or not counts["samples"] > 0 or not timed:
        return None
    return {"round": int(line["round"]), "arm": line["arm"]} | counts | seconds
