"""Event files of TensorBoard, whichever system wrote them: a folder with event files in it is one run.

Read with tensorboard's own loader, all events, no sample of them. Its files keep scalars in 32 bits; TRL leaves its
arguments in them as text. Each writer makes a file of its own, so a run that was resumed has several.
"""

from __future__ import annotations

import errno
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.errors import InputError
from analysis.importing.merge import Row, merged
from analysis.importing.run import History, ImportedRun, Options
from analysis.importing.systems import run_of

TRL_ARGUMENTS = "args/text_summary"
MISSING = "is read with tensorboard, which is not installed: pip install 'tensorboard==2.21.0'"


def looks_like(path: Path) -> bool:
    """Whether `path` is an event file or a folder that has one directly in it."""
    return bool(_event_files(path))


def read(path: Path, options: Options) -> list[ImportedRun]:
    """The one run of a folder; OSError where tensorboard is missing."""
    return [run_of(history_of(path), options)]


def history_of(path: Path) -> History:
    """The scalars of all event files in a folder, of one attempt, a row per step; InputError where there are none."""
    if importlib.util.find_spec("tensorboard") is None:
        raise OSError(errno.ENOPKG, MISSING, str(path))
    files = sorted((list(_scalars_and_texts(file)) for file in _event_files(path)), key=lambda events: events[:1])
    points: list[Row] = []
    config: dict[str, Any] = {}
    for _, step, tag, value in (event for events in files for event in events):
        if isinstance(value, float):
            points.append((step, {tag: value}))
        elif tag == TRL_ARGUMENTS:
            config = _json(value)
    rows, replaced = merged(points)
    if not rows:
        raise InputError(f"{path} has event files without a single scalar")
    notes = [f"{replaced} steps were made again by a later attempt; the later ones count."] if replaced else []
    name = (path if path.is_dir() else path.parent).resolve().name
    return History(name, path, rows, config, tuple(notes))


def _event_files(path: Path) -> list[Path]:
    files = path.iterdir() if path.is_dir() else [path]
    return sorted(file for file in files if ".tfevents." in file.name and file.is_file())


def _scalars_and_texts(file: Path) -> Iterator[tuple[float, int, str, float | str]]:
    """(wall clock in s, step, tag, value) in the order of writing; what follows a damaged record is not there."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            if not value.HasField("tensor"):
                continue
            array = make_ndarray(value.tensor)
            if array.dtype.kind == "f" and array.ndim == 0:
                # the shortest decimal of the 32 bits: .7 is the .7 that was logged, not .69999999
                yield event.wall_time, event.step, value.tag, float(str(array[()]))
            elif array.dtype.kind in "OS" and array.size == 1:
                text = array.ravel()[0]
                yield event.wall_time, event.step, value.tag, text.decode(errors="replace")


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
