"""Questions with their answers from JSON Lines or Parquet files, local or on the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from harness import hub
from harness.errors import InputError
from harness.tasks.config import DataConfig

SUFFIXES = (".jsonl", ".parquet")
_COLUMNS = {"gsm8k": ("question", "answer"), "dapo": ("prompt", "reward_model"), "aime": ("problem", "answer")}
_COLUMNS["plain"] = _COLUMNS["gsm8k"]


def read_questions(config: DataConfig, field: str) -> dict[str, tuple[str, str]]:
    """(question, answer) of every row, in order, by the words of the question; of equal questions the first.

    `field` is the field of the sweep file that `config` is. Raises InputError.
    """
    found: dict[str, tuple[str, str]] = {}
    for path in find_files(config, field):
        for number, row in _rows(path, config):
            try:
                question, answer = _read(row, config.layout)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise InputError(
                    f"{field}.layout: {config.layout} needs {' and '.join(_COLUMNS[config.layout])}; row {number} of "
                    f"{path.name} does not hold them so ({type(error).__name__}: {error})"
                ) from None
            found.setdefault(words(question), (question, answer))
    return found


def find_files(config: DataConfig, field: str) -> list[Path]:
    """The files of a data set, in the order of their names."""
    path = Path(config.data)
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = _matching(path, config.files)
    elif hub.is_hub_id(config.data):
        hub.check_commit("dataset", f"{field}.revision", config.data, config.revision)
        folder = hub.snapshot("dataset", f"{field}.data", config.data, str(config.revision), only=[config.files])
        files = _matching(folder, config.files)
    else:
        raise InputError(f"{field}.data: {config.data!r} does not exist; it is no file, no folder and no hub id")
    if not files or any(file.suffix not in SUFFIXES for file in files):
        names = ", ".join(file.name for file in files[:3]) or "none"
        raise InputError(
            f"{field}.files: {config.files!r} matches {names} in {config.data}; needs {' or '.join(SUFFIXES)} files"
        )
    return files


def is_remote(config: DataConfig) -> bool:
    """Whether the data are on the hub, as far as names tell."""
    return not Path(config.data).exists() and hub.is_hub_id(config.data)


def words(question: str) -> str:
    """What two questions are compared by: their text, however it is spaced.

    >>> words("How many? ") == words("How  many?")
    True
    """
    return " ".join(question.split())


def _matching(folder: Path, pattern: str) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix in SUFFIXES)
    return sorted(path for path in files if fnmatch(path.relative_to(folder).as_posix(), pattern))


def _rows(path: Path, config: DataConfig) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows with their numbers from 1; of Parquet only the columns of the layout."""
    if path.suffix == ".parquet":
        import pandas as pd  # half a second, which planning other tasks need not wait for

        try:
            frame = pd.read_parquet(path, columns=list(_COLUMNS[config.layout]))
        except (ValueError, KeyError, OSError) as error:
            raise InputError(
                f"{path}: cannot be read as {config.layout} Parquet ({' '.join(str(error).split())[:200]})"
            ) from None
        yield from enumerate(frame.to_dict("records"), 1)
        return
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise InputError(f"{path}, line {number}: not valid JSON: {error}") from None


def _read(row: Mapping[str, Any], layout: str) -> tuple[str, str]:
    """(question, answer) of a row.

    >>> _read({"question": "2+3?", "answer": "Two and three.\\n#### 5"}, "gsm8k")
    ('2+3?', '5')
    >>> _read({"prompt": [{"role": "user", "content": "2+3?"}], "reward_model": {"ground_truth": "5"}}, "dapo")
    ('2+3?', '5')
    >>> _read({"problem": "2+3?", "answer": 5}, "aime")
    ('2+3?', '5')
    """
    question, answer = (row[column] for column in _COLUMNS[layout])
    if layout == "gsm8k":
        _, mark, answer = str(answer).rpartition("####")
        if not mark:
            raise ValueError("no #### before the answer")
    if layout == "dapo":
        answer = answer["ground_truth"]
        if not isinstance(question, str):
            question = [message["content"] for message in question if message["role"] == "user"][-1]
    if isinstance(answer, float) and answer.is_integer():
        answer = int(answer)
    question, answer = str(question).strip(), str(answer).strip()
    if not question or not answer:
        raise ValueError("empty")
    return question, answer


def longest(questions: Sequence[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """The questions of most characters, the longest first."""
    return sorted(questions, key=lambda question: -len(question[0]))[:count]
