"""The files that TRL leaves behind: trainer_state.json, the console, and the arguments beside a checkpoint.

`trainer_state.json` lies in every checkpoint; its `log_history` is all rows so far. A console row is a Python
dictionary whose values are numbers or, since transformers 5, their text with four digits; it has an `epoch`, no step.
"""

from __future__ import annotations

import ast
import itertools
import json
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from analysis.errors import InputError
from analysis.importing.merge import numbers
from analysis.importing.run import History

STATE = "trainer_state.json"
ARGUMENTS = "training_args.bin"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BAR_OR_ROW = re.compile(r"(\d+)/(\d+) \[|(\{'[^{}\n]*'epoch'[^{}\n]*\})")
_TRL_NAME = re.compile(r"\{'[^{}\n]*'(?:eval_)?(?:reward|completions/mean_length|completion_length)'[^{}\n]*'epoch'")
_NO_LITERAL = re.compile(r"(?<=: )(?:[-+]?(?:nan|inf)|(?:np\.\w+|tensor)\(([^()]*)\))(?=[,}])")


def is_state(path: Path) -> bool:
    """Whether `path` is a trainer's state or a folder that holds one, in itself or in its checkpoints."""
    if path.is_dir():
        return bool(_states(path))
    return path.suffix == ".json" and path.is_file() and '"log_history"' in path.read_text(errors="replace")


def is_console_log(path: Path) -> bool:
    """Whether a file holds a console row with one of TRL's metrics."""
    return path.is_file() and bool(_TRL_NAME.search(_text(path)))


def history_of(path: Path) -> History:
    """All rows of a state, of the latest state of a folder, or of a console log; InputError where there are none."""
    history = _from_state(path) if path.is_dir() or is_state(path) else _from_console(path)
    if not history.rows:
        raise InputError(
            f"{path} has an empty log_history: no row was logged" if is_state(path) else f"{path} has no rows"
        )
    return history


def _states(folder: Path) -> list[Path]:
    return [file for file in (folder / STATE, *folder.glob(f"checkpoint-*/{STATE}")) if file.is_file()]


def _from_state(path: Path) -> History:
    """The rows of a state; of those in a folder, the one that got furthest, a state outside checkpoints at a tie."""
    states = [(file, _state(file)) for file in (_states(path) if path.is_dir() else [path])]
    file, state = max(states, key=lambda found: found[1].get("global_step", 0))
    rows = [(int(entry["step"]), numbers(entry)) for entry in state["log_history"]]
    home = path if path.is_dir() else path.parent
    name = path.stem if path.is_file() and path.name != STATE else home.resolve().name
    return History(name, path, rows, arguments_of(file.parent, home))


def _state(file: Path) -> dict[str, Any]:
    try:
        state = json.loads(file.read_text())
        _ = [int(entry["step"]) for entry in state["log_history"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is no trainer state, an object with log_history and its steps: {error!r}") from None
    return dict(state)


def _from_console(path: Path) -> History:
    """The rows of a console log; their steps come from the closing row, else from the progress bar."""
    text = _text(path)
    rows: list[dict[str, float]] = []
    bars: list[int] = []
    done, total = 0, 0
    for found in _BAR_OR_ROW.finditer(text):
        if found[3] is None:
            total = total or int(found[2])
            done = int(found[1]) if int(found[2]) == total else done
        elif row := _console_row(found[3]):
            rows.append(row)
            bars.append(done)
    steps = _console_steps(path, rows, bars)
    note = "The console has no steps: they follow from its epochs and its " + (
        "closing row." if _closing(rows) else "progress bar."
    )
    return History(path.stem, path, list(zip(steps, rows, strict=True)), arguments_of(path.parent), (note,))


def _text(path: Path) -> str:
    return _ANSI.sub("", path.read_bytes().decode(errors="replace")).replace("\r", "\n")


def _console_row(text: str) -> dict[str, float]:
    """name -> number; what is no number is left out."""
    try:
        found = ast.literal_eval(_NO_LITERAL.sub(lambda value: value[1] or "None", text))
    except (ValueError, SyntaxError):
        return {}
    return numbers({name: _number(value) for name, value in found.items()})


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _closing(rows: Sequence[Mapping[str, float]]) -> Mapping[str, float] | None:
    """The row at the end of training, which knows how many steps it took."""
    return next((row for row in rows[::-1] if row.get("train_runtime") and row.get("train_steps_per_second")), None)


def _console_steps(path: Path, rows: Sequence[Mapping[str, float]], bars: Sequence[int]) -> list[int]:
    """The optimizer step of each row.

    Training rows come at equal steps, so their number times that distance is exact where epochs are rounded; epochs
    only say the distance, and how far back a resumed run went.
    """
    per_step = _epochs_per_step(rows, bars)
    training = [row["epoch"] for row in rows if "loss" in row or "reward" in row]
    forward = [later - epoch for epoch, later in itertools.pairwise(training) if later > epoch]
    if per_step is None or not (forward or training):
        raise InputError(
            f"{path} has rows without their steps, and neither a closing row with train_runtime nor a progress bar to "
            f"tell them from: import the {STATE} of a checkpoint instead"
        )
    distance = max(round((median(forward) if forward else training[0]) / per_step), 1)
    steps: list[int] = []
    step, epoch = 0, 0.0
    for row in rows:
        ahead = (row["epoch"] - epoch) / per_step
        if "loss" in row or "reward" in row:
            if ahead < 0 or not step:
                place = row["epoch"] / per_step
                step = max(round(place / distance) * distance or round(place), 1)
            else:
                step += distance * max(round(ahead / distance), 1)
            epoch = row["epoch"]
            steps.append(step)
        else:
            steps.append(max(step + round(ahead), 0))
    return steps


def _epochs_per_step(rows: Sequence[Mapping[str, float]], bars: Sequence[int]) -> float | None:
    closing = _closing(rows)
    if closing and closing["epoch"]:
        return closing["epoch"] / max(round(closing["train_runtime"] * closing["train_steps_per_second"]), 1)
    seen = [row["epoch"] / done for row, done in zip(rows, bars, strict=True) if done and row["epoch"]]
    return min(seen, default=None)  # a bar that is drawn late shows too few steps


def arguments_of(*folders: Path) -> dict[str, Any]:
    """The trainer's arguments that are plain values, from the training_args.bin of a folder; {}: there is none.

    The file is a pickle of objects. Nothing of it is imported or called: objects become inert stand-ins, of which only
    plain values are taken.
    """
    for folder in folders:
        for file in (folder / ARGUMENTS, *sorted(folder.glob(f"checkpoint-*/{ARGUMENTS}"))):
            if file.is_file() and zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    name = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
                    if name:
                        with archive.open(name) as stream:
                            return _plain(_Inert(stream).load())
    return {}


class _StandIn:
    """Takes the place of any object."""

    def __new__(cls, *_: Any, **__: Any) -> _StandIn:
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None: ...

    def extend(self, values: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update({str(key): value for key, value in state.items()})


class _Inert(pickle.Unpickler):
    """Reads a pickle without importing or calling what it names."""

    def find_class(self, module: str, name: str) -> Any:
        return _StandIn

    def persistent_load(self, pid: Any) -> Any:
        return None


def _plain(arguments: Any) -> dict[str, Any]:
    found = vars(arguments) if isinstance(arguments, _StandIn) else {}
    return {name: value for name, value in found.items() if isinstance(value, int | float | str)}
