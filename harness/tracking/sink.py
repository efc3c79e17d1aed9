"""The seam to whatever keeps the records of a trial."""

from __future__ import annotations

from typing import Protocol

from harness.types import StepRecord, TrialOutcome


class MetricSink(Protocol):
    """Takes the records of one trial in the order they are made."""

    def write(self, record: StepRecord) -> None:
        """Keep one record. The record of truth raises OSError when it cannot; a mirror never raises."""

    def close(self, outcome: TrialOutcome | None) -> None:
        """The trial ended with this outcome, or None when its attempt stops unfinished."""
