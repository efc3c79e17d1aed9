"""The formats of logs by the name that --format takes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol

from analysis.errors import InputError
from analysis.importing.run import ImportedRun, Options

# Asked in this order by `auto`; each module is imported when it is asked.
MODULES = {
    "verl": "analysis.importing.verl",
    "trl": "analysis.importing.trl",
    "tensorboard": "analysis.importing.tensorboard",
    "wandb": "analysis.importing.wandb",
    "table": "analysis.importing.table",
}


class Reader(Protocol):
    """A module of this package that reads one format."""

    def looks_like(self, path: Path) -> bool:
        """Whether `path` (a file, or a folder that is one run) is of this format; cheap, never raises."""
        ...

    def read(self, path: Path, options: Options) -> list[ImportedRun]:
        """The runs in `path`; raises InputError where it holds none that can be used."""
        ...


def reader_of(name: str) -> Reader:
    """The reader of a format."""
    return importlib.import_module(MODULES[name])


def recognise(path: Path) -> str | None:
    """The first format that `path` looks like, None: none."""
    return next((name for name in MODULES if reader_of(name).looks_like(path)), None)


def is_online(path: Path) -> bool:
    """Whether `path` names runs on a server: wandb://ENTITY/PROJECT[/RUN_ID]."""
    return path.parts[:1] == ("wandb:",)


def logs_under(path: Path, name: str | None = None) -> list[tuple[Path, str]]:
    """(log, its format) of a file, or of everything in a folder that is recognised, in order of path.

    A folder that is itself a run (event files, an offline W&B run) is taken whole. With `name` only that format is
    looked for, and a file is taken to be of it.
    """
    if is_online(path):
        return [(path, "wandb")]
    if not path.exists():
        raise InputError(f"{path} does not exist")
    found = name if name and path.is_file() else None
    if found is None:
        names = [name] if name else list(MODULES)
        found = next((one for one in names if reader_of(one).looks_like(path)), None)
    if found:
        return [(path, found)]
    if path.is_file():
        return []
    return [
        log for child in sorted(path.iterdir()) if not child.name.startswith(".") for log in logs_under(child, name)
    ]
