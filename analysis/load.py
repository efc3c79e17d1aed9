"""Reads results/<sweep> into tidy tables. The only file of the analysis that knows the file formats."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.errors import InputError

FORMAT = 1
PHASES = ("generate", "reward", "train", "sync")
COUNTERS = ("samples_trained", "samples_generated", "optimizer_steps", "wall_s")
TRAIN_FIELDS = ("step", "num_prompts", "group_size", "lr", "tokens_generated", "tokens_trained", "samples_dropped")
UPDATE_COLUMNS = [*COUNTERS, *TRAIN_FIELDS, *(f"{phase}_s" for phase in PHASES), "samples", "samples_before"]
AXES = ("algorithm", "num_prompts", "group_size", "train_batch", "lr", "lr_rule")
FINISHED = ("completed", "diverged")


@dataclass(frozen=True)
class Sweep:
    """One sweep as tidy tables; samples are responses, times are seconds.

    arms:    one row per arm, index `arm`, in plan order: algorithm, num_prompts (P), group_size (G), train_batch
             (B = P*G, responses), lr, lr_rule, whatever else was varied, and `in_flight`, the most responses
             generated at once.
    trials:  one row per planned trial, index `trial_id`: arm, seed, status (completed | diverged | failed |
             interrupted | unfinished | missing), reason, samples_trained, budget_samples (NaN: not stated),
             num_bad_lines (skipped), num_superseded (records that a later attempt made again), commit.
    evals:   one row per evaluation: trial_id, arm, seed, samples_trained, samples_generated, optimizer_steps, wall_s
             and a column per metric. Increasing in samples_trained within a trial.
    updates: one row per train record: the same, step, num_prompts, group_size, lr, tokens_*, samples_dropped, the
             seconds of the phases (generate_s, reward_s, train_s, sync_s), a column per metric, `samples` (responses
             of this update; NaN after a gap in the records) and `samples_before` (samples_trained of the policy that
             the update started from).
    timing:  one row per measurement of the timing pass: round, arm, samples, tokens, updates, seconds of the phases.
    """

    name: str
    question: str | None
    path: Path
    reference_arm: str
    metric: str
    target: float
    arms: pd.DataFrame
    trials: pd.DataFrame
    evals: pd.DataFrame
    updates: pd.DataFrame
    timing: pd.DataFrame

    @property
    def finished(self) -> pd.DataFrame:
        """The trials that ran to their end (completed or diverged): those are the data."""
        return self.trials[self.trials["status"].isin(FINISHED)]


def load_sweep(path: str | Path, target: float | None = None) -> Sweep:
    """The sweep in the folder `path` (the one that holds plan.json); `target` replaces the plan's.

    Raises InputError where the plan cannot be used. Lines of records that cannot be read are skipped and counted.
    """
    path = Path(path)
    plan = _read_plan(path)
    trials, evals, updates = [], [], []
    for planned in plan["trials"]:
        row, tables = _read_trial(path / "trials" / planned["trial_id"], planned)
        trials.append(row)
        evals.append(tables["eval"])
        updates.append(_with_sample_counts(tables["train"]))
    value = plan["target"]["value"] if target is None else target
    if not math.isfinite(value):
        raise InputError(f"target {value} is not a number that a score can reach")
    return Sweep(
        name=plan["sweep"],
        question=plan.get("question"),
        path=path,
        reference_arm=plan["reference_arm"],
        metric=plan["target"]["metric"],
        target=float(value),
        arms=_arms(plan),
        trials=pd.DataFrame(trials).set_index("trial_id"),
        evals=_concatenate(evals, [*COUNTERS]),
        updates=_concatenate(
            updates, [*COUNTERS, *TRAIN_FIELDS, *(f"{p}_s" for p in PHASES), "samples", "samples_before"]
        ),
        timing=_read_timing(path / "timing.jsonl"),
    )


def _read_plan(path: Path) -> dict[str, Any]:
    file = path / "plan.json"
    try:
        plan = json.loads(file.read_text())
    except FileNotFoundError:
        raise InputError(f"{path} has no plan.json: name the folder of one sweep, such as results/default") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}") from None
    if not isinstance(plan, dict) or plan.get("format") != FORMAT:
        found = plan.get("format") if isinstance(plan, dict) else type(plan).__name__
        raise InputError(f"{file} has format {found!r}; this version reads format {FORMAT}")
    try:
        arms = {trial["arm"] for trial in plan["trials"]}
        pairs: dict[tuple[str, int], str] = {}
        for trial in plan["trials"]:
            missing = [axis for axis in AXES if axis not in trial["axes"]]
            if missing:
                raise InputError(f"{file}: trial {trial['trial_id']} lacks the axes {', '.join(missing)}")
            other = pairs.setdefault((trial["arm"], trial["seed"]), trial["trial_id"])
            if other != trial["trial_id"]:
                raise InputError(f"{file}: {other} and {trial['trial_id']} are the same arm with the same seed")
        if plan["reference_arm"] not in arms:
            raise InputError(f"{file}: reference arm {plan['reference_arm']!r} is none of {', '.join(sorted(arms))}")
        _ = plan["sweep"], plan["target"]["metric"], float(plan["target"]["value"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} lacks or misstates a field of format {FORMAT}: {error!r}") from None
    return plan


def _arms(plan: Mapping[str, Any]) -> pd.DataFrame:
    rows: dict[str, dict[str, Any]] = {}
    for trial in plan["trials"]:
        gen_batch = trial.get("config", {}).get("batch", {}).get("gen_batch")
        in_flight = min(trial["axes"]["train_batch"], gen_batch or math.inf)
        rows.setdefault(trial["arm"], {**trial["axes"], "in_flight": in_flight})
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("arm")


def _read_trial(directory: Path, planned: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """The row of the trials table and the tables of its records by kind."""
    identity = {"trial_id": planned["trial_id"], "arm": planned["arm"], "seed": planned["seed"]}
    records, num_bad_lines = read_lines(directory / "metrics.jsonl")
    kinds: dict[str, list[dict[str, Any]]] = {"train": [], "eval": []}
    for record in records:
        if _is_record(record):
            kinds[record["kind"]].append(record)
        else:
            num_bad_lines += 1
    latest = {kind: _latest(found) for kind, found in kinds.items()}
    outcome = _read_object(directory / "outcome.json")
    status = outcome.get("status") or ("unfinished" if records else "missing")
    reasons = {"unfinished": "no outcome.json: still running or killed", "missing": "no records: not started"}
    row = {
        **identity,
        "status": status,
        "reason": str(outcome.get("reason") or reasons.get(status, "")),
        "samples_trained": max((r["samples_trained"] for found in latest.values() for r in found), default=0),
        "budget_samples": planned.get("config", {}).get("budget_samples", math.nan),
        "num_bad_lines": num_bad_lines,
        "num_superseded": sum(len(found) for found in kinds.values()) - sum(len(found) for found in latest.values()),
        "commit": _read_object(directory / "provenance.json").get("commit"),
    }
    return row, {kind: _table(found, identity, kind) for kind, found in latest.items()}


def read_lines(path: Path) -> tuple[list[Any], int]:
    """(what the whole lines of a JSONL file hold, number of lines that are no JSON); ([], 0) without the file."""
    if not path.is_file():
        return [], 0
    values, bad = [], 0
    for line in path.read_bytes().splitlines():
        if line.strip():
            try:
                values.append(json.loads(line))
            except ValueError:
                bad += 1
    return values, bad


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, {} where there is none."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_record(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("kind") in ("train", "eval")
        and isinstance(value.get("samples_trained"), int | float)
        and 0 <= value["samples_trained"] < math.inf
        and isinstance(value.get("metrics"), dict)
        and isinstance(value.get("seconds", {}), dict)
    )


def _latest(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def _table(records: list[dict[str, Any]], identity: Mapping[str, Any], kind: str) -> pd.DataFrame:
    columns: dict[str, Any] = {name: _column(records, name) for name in COUNTERS}
    if kind == "train":
        columns |= {name: _column(records, name) for name in TRAIN_FIELDS}
        seconds = [record.get("seconds", {}) for record in records]
        columns |= {f"{phase}_s": _column(seconds, phase) for phase in PHASES}
    metrics = [record["metrics"] for record in records]
    names = dict.fromkeys(name for found in metrics for name in found)
    columns |= {name: _column(metrics, name) for name in names}
    return pd.DataFrame({**{k: np.full(len(records), v) for k, v in identity.items()}, **columns})


def _column(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    """Numbers of one field; what is missing, no number or not finite is NaN."""
    found = (row.get(name) for row in rows)
    values = np.array([v if isinstance(v, int | float) else math.nan for v in found], dtype=float)
    values[~np.isfinite(values)] = math.nan
    return values


def _with_sample_counts(updates: pd.DataFrame) -> pd.DataFrame:
    """Adds `samples_before` and `samples`, both NaN where the record before is missing (a gap in `step`).

    Without steps every record is taken to follow the one before it.
    """
    trained_R, step_R = updates["samples_trained"].to_numpy(), updates["step"].to_numpy()
    before_R = np.concatenate([[0.0], trained_R[:-1]])[: len(trained_R)]
    if len(step_R) and np.isfinite(step_R).all():
        gap_R = np.diff(step_R, prepend=0.0 if step_R[0] <= 1 else -math.inf) > 1
        before_R[gap_R] = math.nan
    return updates.assign(samples_before=before_R, samples=trained_R - before_R)


def _read_timing(path: Path) -> pd.DataFrame:
    """One row per (round, arm), the last line of each; round 0 only warms up."""
    names = ("round", "arm", "samples", "tokens", "updates")
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for record in read_lines(path)[0]:
        if not isinstance(record, dict) or not isinstance(record.get("seconds"), dict):
            continue
        number = record.get("round")
        if isinstance(number, int) and number > 0:
            seconds = {f"{phase}_s": record["seconds"].get(phase, 0.0) for phase in PHASES}
            rows[number, str(record.get("arm"))] = {name: record.get(name) for name in names} | seconds
    numbers = ["samples", "tokens", "updates", *(f"{phase}_s" for phase in PHASES)]
    return pd.DataFrame(list(rows.values()), columns=["round", "arm", *numbers]).astype(dict.fromkeys(numbers, float))


def _concatenate(tables: list[pd.DataFrame], required: list[str]) -> pd.DataFrame:
    """One table of all trials; a metric that a trial lacks is NaN there."""
    filled = [table for table in tables if len(table)]
    if not filled:
        return pd.DataFrame(columns=["trial_id", "arm", "seed", *required]).astype(dict.fromkeys(required, float))
    return pd.concat(filled, ignore_index=True)


def records_of(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """(trial_id, its rows) in order of appearance."""
    for trial_id, rows in table.groupby("trial_id", sort=False):
        yield str(trial_id), rows
