"""Asks python -m analysis advise: the two packages share nothing but files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from harness.advise.config import Moments
from harness.errors import EnvironmentProblem, InputError
from harness.worker import environment

_PROBLEMS = {2: InputError, 3: EnvironmentProblem}


@with_config(ConfigDict(extra="ignore"))
class Item(TypedDict):
    """One thing to run: a trial, a branch, a timing pass over arms, or a profile of arms at places in flight.

    rounds: of the timing pass in all, those that are there included; unset: timing.rounds of the file.
    """

    do: Literal["run", "branch", "time", "profile"]
    why: str
    arm: NotRequired[str]
    seed: NotRequired[int]
    samples: NotRequired[int | None]
    trial: NotRequired[str | None]
    at_samples: NotRequired[int]
    moments: NotRequired[Moments]
    noise_scale: NotRequired[float | None]
    arms: NotRequired[list[str]]
    rounds: NotRequired[int | None]
    gen_batch: NotRequired[dict[str, list[int]]]


_ITEMS = TypeAdapter(list[Item])


@dataclass(frozen=True)
class Answer:
    """advice.json, what of it is to be run next, and what the brain prints for a person."""

    content: Mapping[str, Any]
    next: tuple[Item, ...]
    text: str

    @classmethod
    def of(cls, content: Mapping[str, Any], text: str = "") -> Answer:
        """Checks what is to be run. Raises InputError."""
        try:
            items = _ITEMS.validate_python(content.get("next"))
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            raise InputError(f"advice.json: next.{where}: {error.errors()[0]['msg']}") from None
        for item in items:
            needed = {"run": ("arm", "seed"), "branch": ("arm", "seed", "trial", "at_samples", "samples", "moments")}
            needed |= {"time": ("arms",), "profile": ("arms", "gen_batch")}
            lacking = [name for name in needed[item["do"]] if item.get(name) is None]
            if lacking:
                raise InputError(f"advice.json: next: {item['do']} lacks {', '.join(lacking)}")
        return cls(content, tuple(items), text)


Ask = Callable[[Path, int], Answer]


def ask_analysis(folder: Path, workers: int) -> Answer:
    """What the records in `folder` say so far, with proposals for so many workers."""
    command = [sys.executable, "-m", "analysis", "advise", str(folder), "--workers", str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment(1), errors="replace")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        kind = _PROBLEMS.get(done.returncode, EnvironmentProblem)
        raise kind(f"python -m analysis advise {folder}: {lines[-1].removeprefix('error: ')}")
    try:
        content = json.loads((folder / "advice" / "advice.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"{folder / 'advice' / 'advice.json'}: cannot be read ({error})") from None
    return Answer.of(content, done.stdout)
