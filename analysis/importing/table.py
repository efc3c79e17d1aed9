"""Runs from a table: CSV, TSV or JSONL (one object a line), with a map from our fields to its columns.

A column that has a field's own name needs no mapping. Fields:

- where a row stands, one of: `step` (rollout batches so far), `prompts_trained`, `samples_trained` (responses), each
  after the row's own update; where the row of step 0 trains, steps count from 0.
- scores: `score` of the policy after the row's update (validation), `train_score` of the one before it.
- seconds of the row's update: `generate_s`, `reward_s`, `train_s`, `sync_s`, or `seconds` for all of it, without
  `evaluate_s` and `checkpoint_s`, which do not count into q.
- `lr`, `grad_norm` and `critic_grad_norm` (before clipping), `response_length` (mean tokens).
- which run a row is of: `run`, `arm`, `seed`, `num_prompts`, `group_size`. Rows without them are one run.

A row that has `score` alone only evaluates. Rows of one place that follow one another are one row.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.errors import InputError
from analysis.importing.run import Evaluation, History, ImportedRun, Options, Update, batch_of, last_attempt

PLACES = ("step", "prompts_trained", "samples_trained")
RUN = ("run", "arm", "seed", "num_prompts", "group_size")
SECONDS = {
    "seconds": "undivided",
    "generate_s": "generate",
    "reward_s": "reward",
    "train_s": "train",
    "sync_s": "sync",
}
APART = {"evaluate_s": "evaluate", "checkpoint_s": "checkpoint"}
METRICS = {
    "train_score": "reward/mean",
    "grad_norm": "grad/actor_norm",
    "critic_grad_norm": "grad/critic_norm",
    "response_length": "response/length_mean",
}
TRAINING = ("train_score", *SECONDS, "lr", "grad_norm", "critic_grad_norm", "response_length")
FIELDS = (*PLACES, "score", *TRAINING, *APART, *RUN)
SUFFIXES = {".csv": ",", ".tsv": "\t", ".jsonl": None}


def looks_like(path: Path) -> bool:
    """Whether a file is a table that says by our own names where its rows stand and what they score."""
    if not path.is_file() or path.suffix not in SUFFIXES:
        return False
    try:
        columns = set(_frame(path, 1).columns)
    except (ValueError, InputError):
        return False
    return bool(columns & set(PLACES)) and bool(columns & {"score", "train_score"})


def read(path: Path, options: Options) -> list[ImportedRun]:
    """The runs of a table, in order of appearance."""
    try:
        frame = _frame(path)
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a table: {error}") from None
    table, names = _mapped(path, frame, options.columns)
    own = [name for name in RUN if name in table]
    if not own:
        return [_run(path, path.stem, table, names, options)]
    for name in {"run", "arm", "seed"} & set(own):
        if table[name].isna().any():
            row = int(table[name].isna().argmax()) + 1
            raise InputError(f"{path}: row {row} has no {name}, which others have; needed is one in each row")
    found = []
    for key, rows in table.groupby(own, sort=False, dropna=False):
        said = dict(zip(own, key, strict=True))
        label = "-".join(f"{value}" for name, value in said.items() if name in ("run", "arm", "seed"))
        run = _run(path, label or path.stem, rows, names, _told(path, said, options))
        found.append(replace(run, arm=str(said["arm"])) if "arm" in said else run)
    return found


def run_of(history: History, options: Options) -> ImportedRun:
    """The run that the rows of any logger are: a metric is a column, and where none says the place, their step does."""
    frame = pd.DataFrame([dict(metrics) for _, metrics in history.rows])
    if not any(options.columns.get(place, place) in frame for place in PLACES):
        frame["step"] = [step for step, _ in history.rows]
    table, names = _mapped(history.source, frame, options.columns)
    run = _run(history.source, history.name, table, names, options)
    return replace(run, assumptions=(*history.notes, *run.assumptions))


def _frame(path: Path, rows: int | None = None) -> pd.DataFrame:
    separator = SUFFIXES.get(path.suffix, ",")
    if separator is not None:
        return pd.read_csv(path, sep=separator, nrows=rows, skipinitialspace=True)
    lines: list[Any] = []
    with path.open("rb") as file:
        for line in file:
            if line.strip() and (rows is None or len(lines) < rows):
                lines.append(json.loads(line))
    if not all(isinstance(line, dict) for line in lines):
        raise InputError(f"{path} holds lines that are no JSON objects")
    return pd.json_normalize(lines, sep="/")


def _mapped(path: Path, frame: pd.DataFrame, columns: Mapping[str, str]) -> tuple[pd.DataFrame, dict[str, str]]:
    """(the table with our names, field -> its column)."""
    for field in columns:
        if field not in FIELDS:
            raise InputError(f"--columns {field}=...: there is no field {field!r}; there are {', '.join(FIELDS)}")
    known = ", ".join(map(str, frame.columns))
    for field, column in columns.items():
        if column not in frame:
            raise InputError(f"--columns {field}={column}: {path} has no such column; it has {known}")
    names = {field: columns.get(field, field) for field in FIELDS if columns.get(field, field) in frame}
    table = pd.DataFrame({field: frame[column] for field, column in names.items()})
    places = [name for name in PLACES if name in table]
    if len(places) != 1:
        found = f"both {' and '.join(places)}" if places else "none of them"
        raise InputError(
            f"{path} needs one column of {', '.join(PLACES)} and has {found}: map it with --columns FIELD=NAME "
            f"(its columns: {known})"
        )
    if "score" not in table and "train_score" not in table:
        raise InputError(
            f"{path} has neither score nor train_score: map one with --columns score=NAME (its columns: {known})"
        )
    for name in [name for name in names if name not in ("run", "arm")]:
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return table, names


def _told(path: Path, said: Mapping[str, Hashable], options: Options) -> Options:
    """The options with what the table says of one run."""
    counts: dict[str, Any] = {}
    for name in ("seed", "num_prompts", "group_size"):
        value: Any = said.get(name)
        if value is not None and not math.isnan(value):
            if value != int(value):
                raise InputError(f"{path}: {name} is {value}, needed is a whole number")
            if getattr(options, name) not in (None, int(value)) and name != "seed":
                raise InputError(f"{path}: {name} is {value:g} in the table, {getattr(options, name)} in the options")
            counts[name] = int(value)
    return replace(options, **counts)


def _run(path: Path, name: str, table: pd.DataFrame, names: Mapping[str, str], options: Options) -> ImportedRun:
    num_prompts, group_size = batch_of(path, options, None, None)
    train_batch = num_prompts * group_size
    place = next(field for field in PLACES if field in table)
    training = [field for field in TRAINING if field in table]
    rows = table.dropna(subset=[place])
    rows = rows[rows[[*training, *({"score"} & set(rows))]].notna().any(axis=1)]
    if rows.empty:
        raise InputError(f"{path}: {name} has no row with a {place} and a value")
    rows = rows.groupby((rows[place] != rows[place].shift()).cumsum()).last()
    superseded = len(rows)
    rows = rows.iloc[last_attempt(rows[place].tolist())]
    superseded -= len(rows)
    trains = rows[training].notna().any(axis=1)
    zero = place == "step" and bool((trains & (rows[place] == 0)).any())
    after = _samples(path, name, rows, place, (train_batch, num_prompts, group_size), zero)
    notes = []
    if zero or names[place] != place:
        notes.append(f"Column {names[place]!r} is {place}" + (", counted from 0." if zero else "."))
    if superseded:
        notes.append(f"{superseded} rows were made again by a later attempt; the later ones count.")
    records = [{str(f): v for f, v in row.items() if v == v} for row in rows.to_dict(orient="records")]
    scored = zip(records, after, strict=True)
    evals = [Evaluation(n, {names["score"]: row["score"]}) for row, n in scored if "score" in row]
    updates = [
        _update(row, n, train_batch, names) for row, n, own in zip(records, after, trains, strict=True) if own and n > 0
    ]
    rates = [update.lr for update in updates if update.lr is not None]
    return ImportedRun(
        name=name,
        source=path,
        system="table",
        num_prompts=num_prompts,
        group_size=group_size,
        updates=tuple(updates),
        evals=tuple(evals),
        curves=tuple(names[field] for field in ("score", "train_score") if field in table),
        lr=options.lr if options.lr is not None else max(rates, default=None),
        seed=options.seed,
        assumptions=tuple(notes),
    )


def _samples(
    path: Path, name: str, rows: pd.DataFrame, place: str, batch: tuple[int, int, int], zero: bool
) -> list[int]:
    """samples_trained after each row; InputError where it cannot be, for its unit is wrong."""
    train_batch, num_prompts, group_size = batch
    unit = {"step": train_batch, "prompts_trained": group_size, "samples_trained": 1}[place]
    if any(value < 0 or value != int(value) for value in rows[place]):
        raise InputError(f"{path}: {name} has a {place} that is no count")
    values = [(value + zero) * unit for value in rows[place]]
    grows = min((b - a for a, b in itertools.pairwise(values)), default=train_batch)
    if grows < train_batch and place != "step":
        hint = ""
        if place == "samples_trained" and grows == num_prompts:
            hint = "; it seems to count prompts: map it as prompts_trained"
        raise InputError(
            f"{path}: {place} of {name} grows by {grows:,.0f} responses from one row to the next, less than the "
            f"{train_batch:,} of one update (P = {num_prompts}, G = {group_size}){hint}"
        )
    return [int(value) for value in values]


def _update(row: Mapping[str, float], samples: int, train_batch: int, names: Mapping[str, str]) -> Update:
    return Update(
        step=max(round(samples / train_batch), 1),
        samples_before=max(samples - train_batch, 0),
        samples_trained=samples,
        scores={names["train_score"]: row["train_score"]} if "train_score" in row else {},
        metrics={our: row[field] for field, our in METRICS.items() if field in row},
        seconds={our: row[field] for field, our in SECONDS.items() if field in row},
        apart_s={our: row[field] for field, our in APART.items() if field in row},
        tokens=round(row["response_length"] * train_batch) if "response_length" in row else None,
        lr=row.get("lr"),
    )
