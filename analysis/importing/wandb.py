"""Runs of Weights & Biases, whichever system wrote them: offline folders, and online by a full scan.

An offline run is read by the client's own reader, `wandb leet inspect`; folders of one run id are attempts of one run,
in the order of their start. An online run is `wandb://ENTITY/PROJECT/RUN_ID`, all runs of a project
`wandb://ENTITY/PROJECT`; a history is scanned whole, for a sampled one gives another N* at every call. The client
writes NaN as text.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.errors import InputError
from analysis.importing.formats import is_online
from analysis.importing.merge import Row, merged, numbers
from analysis.importing.run import History, ImportedRun, Options
from analysis.importing.systems import run_of

STEPS = ("train/global_step", "eval/global_step")
"""Metrics that hold a system's own step; without them the step is W&B's, which counts calls of log unless told."""
COUNTERS = (*STEPS, "eval/epoch")
"""Not metrics of a step: the client itself adds the last value of what others are drawn over."""


@dataclass(frozen=True)
class Attempt:
    """One transaction log: when its process started, its records, and what its reader remarked."""

    start: str
    log: Path
    records: Sequence[Mapping[str, Any]]
    remarks: tuple[str, ...]


def looks_like(path: Path) -> bool:
    """Whether `path` is a transaction log, the folder of a run, or a folder of such folders (`wandb/`)."""
    return bool(_logs(path))


def read(path: Path, options: Options) -> list[ImportedRun]:
    """The runs in `path`; of several, those that cannot be used are named in the assumptions of the first that can.

    Raises InputError where none can be used, OSError where the client or the server fails.
    """
    histories = online_histories(_api(path), path) if is_online(path) else offline_histories(path)
    runs: list[ImportedRun] = []
    refused: list[str] = []
    for history in histories:
        try:
            if not history.rows:
                said = f" ({' '.join(history.notes)})" if history.notes else ""
                raise InputError(f"{history.source} has an empty history: no number was logged{said}")
            runs.append(run_of(history, options))
        except InputError as error:
            refused.append(str(error))
    if not runs:
        raise InputError(refused[0] if refused else f"{path} has no runs")
    left_out = tuple(f"Left out: {reason}." for reason in refused)
    return [replace(runs[0], assumptions=runs[0].assumptions + left_out), *runs[1:]]


def _logs(path: Path) -> list[Path]:
    """The transaction logs of a run's folder or of a folder of runs, each once: latest-run is a link to another."""
    if path.is_file():
        return [path] if path.suffix == ".wandb" else []
    if not path.is_dir():
        return []
    runs = [child for child in path.glob("*run-*") if child.is_dir() and not child.is_symlink()]
    return sorted(log for folder in (path, *runs) for log in folder.glob("*.wandb"))


def offline_histories(path: Path) -> list[History]:
    """The runs whose logs lie in `path`, attempts joined, in the order of their start; OSError without the client."""
    attempts: dict[str, list[Attempt]] = {}
    for log in _logs(path):
        records, remarks = _records(log)
        run: Mapping[str, Any] = next((record["run"] for record in records if record["type"] == "run"), {})
        attempt = Attempt(run.get("start_time", ""), log, records, remarks)
        attempts.setdefault(run.get("run_id", log.stem), []).append(attempt)
    in_order = {run_id: sorted(found, key=lambda attempt: attempt.start) for run_id, found in attempts.items()}
    return [_offline_history(*run) for run in sorted(in_order.items(), key=lambda run: run[1][0].start)]


def _records(log: Path) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """(what a transaction log holds of its run, up to where it was cut off; what the client's reader remarked)."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    remarks = [line.removeprefix("wandb leet inspect: ") for line in done.stderr.splitlines() if line.strip()]
    if done.returncode and ("No such command" in done.stderr or "No module named" in done.stderr):
        raise OSError(errno.ENOPKG, f"is read by `wandb leet inspect` of wandb 0.31: {remarks[-1]}", str(log))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = [line for line in lines if line.get("type") in ("run", "config", "history")]
    return wanted, tuple(f"Of {log.name} the client's reader says: {remark}." for remark in remarks)


def _offline_history(run_id: str, attempts: Sequence[Attempt]) -> History:
    name, config, items = run_id, dict[str, Any](), list[Mapping[str, Any]]()
    for record in (record for attempt in attempts for record in attempt.records):
        content = record.get(record["type"], {})
        if record["type"] == "history":
            items.append({**content["item"], "_step": content.get("step", {}).get("num", 0)})
        elif record["type"] == "run":
            name = content.get("display_name") or name
            config |= content.get("config", {}).get("update", {})
        elif record["type"] == "config":
            config |= content.get("update", {})
    notes = [remark for attempt in attempts for remark in attempt.remarks]
    if len(attempts) > 1:
        notes.append(f"{len(attempts)} attempts of the run were joined.")
    return _history(name, attempts[0].log, items, config, notes)


def _api(path: Path) -> Any:
    try:
        import wandb

        return wandb.Api()
    except Exception as error:  # the client raises its own, the socket's and the operating system's errors
        raise OSError(errno.ENOTCONN, f"the W&B server did not let us in: {_first_line(error)}", str(path)) from None


def online_histories(api: Any, path: Path) -> list[History]:
    """The runs that `path` names on the server of `api`, each with all rows of its history, in order of creation."""
    where = "/".join(path.parts[1:])
    if len(path.parts) not in (3, 4):
        raise InputError(f"{path}: an online run is wandb://ENTITY/PROJECT/RUN_ID, a project wandb://ENTITY/PROJECT")
    try:
        runs = [api.run(where)] if len(path.parts) == 4 else list(api.runs(where, order="+created_at"))
        found = [(run, list(run.scan_history())) for run in runs]
    except Exception as error:  # as above
        if "could not find" in str(error).lower():
            raise InputError(f"wandb://{where} is not on the server: {_first_line(error)}") from None
        raise OSError(errno.EREMOTEIO, f"W&B: {_first_line(error)}", f"wandb://{where}") from None
    home = Path(*path.parts[:3])
    return [_history(run.name or run.id, home / run.id, rows, dict(run.config), []) for run, rows in found]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def _history(
    name: str, source: Path, items: Iterable[Mapping[str, Any]], config: Mapping[str, Any], notes: list[str]
) -> History:
    """The rows of one run under the step of the system that wrote it."""
    rows = [(item, numbers({key: value for key, value in item.items() if not key.startswith("_")})) for item in items]
    rows = [(item, metrics) for item, metrics in rows if metrics]
    own_step = any(step in metrics for _, metrics in rows for step in STEPS)
    points: list[Row] = []
    without = 0
    for item, metrics in rows:
        step = next((metrics[name] for name in STEPS if name in metrics), None if own_step else item.get("_step"))
        if step is None:
            without += 1
        else:
            points.append((int(step), {key: value for key, value in metrics.items() if key not in COUNTERS}))
    found, replaced = merged(points)
    if without:
        notes = [*notes, f"{without} rows without a global step were left out."]
    if replaced:
        notes = [*notes, f"{replaced} steps were made again by a later attempt; the later ones count."]
    return History(name, source, found, {k: v for k, v in config.items() if k != "_wandb"}, tuple(notes))
