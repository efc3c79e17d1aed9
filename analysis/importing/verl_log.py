"""The text that verl leaves behind: console logs as a terminal or a job file holds them, and its JSONL file logger.

A console row is `step:S - name:value - name:value ...`; around it stand ANSI colours, Ray's `(Name pid=1)`, progress
bars and what the workers print meanwhile. The resolved configuration is printed once, as a Python dictionary over many
lines; the command line with its overrides often is. The file logger writes `{"step": S, "data": {...}}` a line.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.errors import InputError
from analysis.importing.run import History

ROOTS = ("data", "actor_rollout_ref", "critic", "algorithm", "trainer", "reward_model")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"^\((?:[\w:.]+ )?pid=\d+[^)]*\) ?")
_ROW = re.compile(r"(?<![\w/.])step:(\d+) - (?=[^\s:]+:)(.*)")
_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)"
# Behind the last number of a row may stand the next process' prefix, or a progress bar that got no line of its own.
_VALUE = re.compile(rf"(?:(?:np\.\w+|tensor)\()?({_NUMBER})(?:[^()]*\))?(?=$|\s|\(|Training Progress)")
_PRINTED = re.compile(r"(Initial|Final) validation metrics: \{(.*?)\}")
_PRINTED_ITEM = re.compile(rf"'([^']+)': (?:np\.\w+\()?({_NUMBER})")
_OVERRIDE = re.compile(rf"(?<![\w.])\+{{0,2}}((?:{'|'.join(ROOTS)})(?:\.\w+)+)=([^\s'\"\\]+)")


def is_console_log(path: Path) -> bool:
    """Whether a file holds a row with one of verl's metrics."""
    names = re.compile(r"\b(?:actor|critic|val-core|val|val-aux|timing_s|timing|training)/\S+:")
    return any((row := _ROW.search(line)) and names.search(row[2]) for line in _lines(path))


def is_file_log(path: Path) -> bool:
    """Whether the first line of a file is one of verl's file logger."""
    with path.open("rb") as file:
        value = _json(file.readline())
    return value is not None


def read_console_log(path: Path) -> History:
    """All rows of a console log, in order, with the configuration that it printed.

    A row that was cut loses its last number, which may lack digits, and its seconds, which may lack a phase. The
    validation that old versions only print becomes a row whose metrics are named as in the other rows, at step -1 for
    the initial one and at the step after the last for the final one.
    """
    rows: list[tuple[int, dict[str, float]]] = []
    last_names: list[str] = []
    broken: set[int] = set()
    for line in _lines(path):
        if found := _ROW.search(line):
            metrics, whole = _items(found[2])
            if not metrics:
                continue
            if not whole:
                broken.add(len(rows))
            last_names.append(next(reversed(metrics)))
            rows.append((int(found[1]), metrics))
        elif printed := _PRINTED.search(line):
            metrics = {_val(name): float(value) for name, value in _PRINTED_ITEM.findall(printed[2])}
            step = -1 if printed[1] == "Initial" else max((step for step, _ in rows), default=-1) + 1
            if metrics and not any(name in found for _, found in rows[-1:] for name in metrics):
                last_names.append("")
                rows.append((step, metrics))
    broken |= _cut(rows, last_names)
    for index in broken:
        _, metrics = rows[index]
        metrics.pop(last_names[index], None)
        for name in [name for name in metrics if name.startswith("timing")]:
            del metrics[name]
    each = "row counts without its" if len(broken) == 1 else "rows count without their"
    whose = "its" if len(broken) == 1 else "their"
    notes = [f"{len(broken)} cut {each} last number and {whose} seconds."] if broken else []
    return History(path.stem, path, [row for row in rows if row[1]], _config(path), tuple(notes))


def read_file_log(path: Path) -> History:
    """All rows of verl's file logger; it holds no configuration."""
    lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    found = [_json(line) for line in lines]
    rows = [row for row in found if row is not None]
    bad = len(found) - len(rows)
    notes = [f"{bad} damaged lines were skipped."] if bad else []
    return History(path.stem, path, rows, {}, tuple(notes))


def _json(line: bytes) -> tuple[int, dict[str, float]] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("data"), dict) or type(value.get("step")) is not int:
        return None
    numbers = {name: float(x) for name, x in value["data"].items() if type(x) in (int, float) and math.isfinite(x)}
    return value["step"], numbers


def _lines(path: Path) -> Iterator[str]:
    """Lines without colours; a carriage return ends one too, for that is how progress bars end theirs."""
    with path.open("rb") as file:
        for raw in file:
            yield from _ANSI.sub("", raw.decode(errors="replace")).splitlines()


def _items(text: str) -> tuple[dict[str, float], bool]:
    """(name -> finite number, whether every item could be read); what follows an item that cannot be is not read."""
    metrics: dict[str, float] = {}
    for item in text.split(" - "):
        name, _, value = item.partition(":")
        number = _VALUE.match(value)
        if number is None:  # the name itself has a colon
            name, _, value = item.rpartition(":")
            number = _VALUE.match(value)
        if value.strip() in ("True", "False", "None"):
            continue
        if not name or (" " in name and not name.startswith("val")) or number is None:
            return metrics, False
        if math.isfinite(float(number[1])):
            metrics[name] = float(number[1])
        if number.end() < len(value.rstrip()):
            break
    return metrics, True


def _cut(rows: list[tuple[int, dict[str, float]]], last_names: list[str]) -> set[int]:
    """Rows that end at a name at which hardly any other row ends, and which others have in their middle."""
    training = [index for index, (_, metrics) in enumerate(rows) if any(not n.startswith("val") for n in metrics)]
    ends = Counter(last_names[index] for index in training)
    return {
        index
        for index in training
        if ends[last_names[index]] <= 0.05 * len(training)
        and any(last_names[index] in rows[other][1] and last_names[other] != last_names[index] for other in training)
    }


def _val(name: str) -> str:
    return name if name.startswith("val") else f"val/{name}"


def _config(path: Path) -> dict[str, Any]:
    """The configuration that the log printed, completed by the overrides of the command line."""
    config: dict[str, Any] = {}
    for line in _lines(path):
        for name, value in _OVERRIDE.findall(line):
            _set(config, name.split("."), _plain(value))
    for key, value in _printed_config(path).items():
        config[key] = _merged(config.get(key), value)
    return config


def _printed_config(path: Path) -> dict[str, Any]:
    """The first dictionary of the log that is a configuration: its lines share the prefix of one process."""
    prefix, text, depth = "", "", 0
    for line in _lines(path):
        own = _PREFIX.match(line)
        start, rest = (own[0], line[own.end() :]) if own else ("", line)
        if not text:
            if not re.match(r"\{'(?:actor_rollout_ref|algorithm|data|critic)': ", rest):
                continue
            prefix = start
        elif start != prefix:
            continue
        text += rest + "\n"
        depth += rest.count("{") - rest.count("}")
        if depth <= 0:
            try:
                found = ast.literal_eval(re.sub(r"(?<=: )(?:inf|nan)\b", "None", text))
            except (ValueError, SyntaxError):
                return {}
            return found if isinstance(found, dict) else {}
    return {}


def _set(config: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        below = config.setdefault(key, {})
        if not isinstance(below, dict):
            return
        config = below
    config[keys[-1]] = value


def _merged(low: Any, high: Any) -> Any:
    if isinstance(low, Mapping) and isinstance(high, Mapping):
        return {key: _merged(low.get(key), high[key]) if key in high else low[key] for key in {**low, **high}}
    return high


def _plain(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def history_of(path: Path) -> History:
    """The rows of either kind of log; InputError where there are none."""
    history = read_file_log(path) if is_file_log(path) else read_console_log(path)
    if not history.rows:
        raise InputError(f"{path} has no rows of verl (`step:1 - actor/...`, or JSONL of its file logger)")
    return history
