"""trial.log of a trial's folder: one line for each event, with its time.

The harness's own events from INFO on and what libraries warn about, as long as the log is entered; besides what the
driver notes of attempts that could not say so themselves.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.secrets import redact

HARNESS = "harness"


@contextmanager
def trial_log(folder: Path) -> Iterator[None]:
    """While entered, events of this process go to the log of the trial in `folder`."""
    handler = _ToFile(folder)
    root, ours = logging.getLogger(), logging.getLogger(HARNESS)
    level = ours.level
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        ours.setLevel(level)


def note(folder: Path, text: str) -> None:
    """Append one line. A log that cannot be written stops nothing."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = f"{now} {' '.join(redact(text).split())}\n"
    with suppress(OSError):
        descriptor = os.open(folder / "trial.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, line.encode(errors="replace"))
        finally:
            os.close(descriptor)


class _ToFile(logging.Handler):
    """Ours from INFO on, others' from WARNING on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.INFO)
        self._folder = folder

    def emit(self, record: logging.LogRecord) -> None:
        is_ours = record.name.split(".")[0] == HARNESS
        if not is_ours and record.levelno < logging.WARNING:
            return
        try:
            text = record.getMessage()
        except Exception:  # a library's message that does not fit its arguments
            text = str(record.msg)
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        note(self._folder, f"{level}{'' if is_ours else record.name + ': '}{text}")
