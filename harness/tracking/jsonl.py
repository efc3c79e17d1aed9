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


def read_records(path: Path | str) -> tuple[list[dict[str, Any]], int]:
    """The records of `path` in file order, and how many lines could not be read as one.

    No file is no record. A record that was computed again after a resume appears again: the last one for a
    (kind, samples_trained) counts.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], 0
    records: list[dict[str, Any]] = []
    num_bad_lines = 0
    for line in filter(None, lines):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            num_bad_lines += 1
    return records, num_bad_lines


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
