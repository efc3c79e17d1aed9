"""metrics.jsonl, the record of truth, and files like it: one JSON object a line, append-only, whole lines only."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.types import StepRecord, TrialOutcome

_BLOCK_BYTES = 1 << 16


class JsonlFile:
    """Appends objects to `path`. A partial last line, left by a kill, is cut when the file is opened."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size_bytes = _end_of_last_line(self._descriptor)
        os.ftruncate(self._descriptor, self._size_bytes)

    def append(self, content: Mapping[str, Any]) -> None:
        """Append one line in one write. OSError when it does not fit; then the file is as it was before."""
        line = json.dumps(content, allow_nan=False).encode() + b"\n"
        try:
            written = os.write(self._descriptor, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes could be written", str(self.path))
        except OSError as error:
            with contextlib.suppress(OSError):  # a disk that has turned read-only refuses this too
                os.ftruncate(self._descriptor, self._size_bytes)
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        self._size_bytes += len(line)

    def sync(self) -> None:
        """Return once every record is on the disk: call before a checkpoint that builds on them."""
        os.fsync(self._descriptor)

    def close(self, outcome: TrialOutcome | None = None) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class JsonlSink(JsonlFile):
    """The record of truth of one trial (see tracking.sink.MetricSink)."""

    def write(self, record: StepRecord) -> None:
        """Keep one record; OSError when it cannot be kept."""
        self.append(record.as_json())


def read_objects(path: Path | str) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects of `path` in file order, and how many lines are none. No file is no line."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], 0
    contents = [_parsed(line) for line in lines if line]
    objects = [content for content in contents if isinstance(content, dict)]
    return objects, len(contents) - len(objects)


def read_records(path: Path | str) -> tuple[list[dict[str, Any]], int]:
    """The records of `path` in file order, and how many lines are none.

    A record has a kind and a whole `samples_trained`; its other fields are finite numbers, or names to finite
    numbers, and `metrics` is there: whatever else a damaged file holds is left out. A record that was computed again
    after a resume appears again: the last one for a (kind, samples_trained) counts.
    """
    objects, num_bad_lines = read_objects(path)
    records = [record for content in objects if (record := _as_record(content)) is not None]
    return records, num_bad_lines + len(objects) - len(records)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _as_record(content: dict[str, Any]) -> dict[str, Any] | None:
    kind, samples = content.get("kind"), content.get("samples_trained")
    if kind not in ("train", "eval") or not isinstance(samples, int) or not _is_number(samples) or samples < 0:
        return None
    record: dict[str, Any] = {"kind": kind, "metrics": {}}
    for name, value in content.items():
        if isinstance(value, dict):
            record[name] = {key: number for key, number in value.items() if _is_number(number)}
        elif _is_number(value):
            record[name] = value
    return record


def _is_number(value: Any) -> bool:
    """Whether it is a number that arithmetic and tables can take; NaN, infinities and giants are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _end_of_last_line(descriptor: int) -> int:
    """Length in bytes of the file up to and with its last newline."""
    position = os.fstat(descriptor).st_size
    while position > 0:
        start = max(0, position - _BLOCK_BYTES)
        newline = os.pread(descriptor, position - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0
