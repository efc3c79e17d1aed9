"""The mirrors that a trial's configuration asks for, beside metrics.jsonl."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.tracking.sink import MetricSink
from harness.tracking.tensorboard import TensorBoardSink
from harness.tracking.wandb_sink import WandbSink
from harness.types import StepRecord, TrialOutcome

if TYPE_CHECKING:
    from harness.plan import PlannedTrial

logger = logging.getLogger(__name__)


def open_mirrors(trial: PlannedTrial, sweep_dir: Path, provenance: Mapping[str, Any]) -> list[MetricSink]:
    """Each in the order in which records are handed to them. None of them raises."""
    mirrors: list[MetricSink] = []
    if trial.config.tracking.wandb:
        mirrors.append(WandbSink(trial, sweep_dir, provenance))
    if trial.config.tracking.tensorboard:
        mirrors.append(Guarded("TensorBoard", lambda: TensorBoardSink(trial, sweep_dir)))
    return mirrors


class Guarded:
    """A mirror that is left behind, with a warning, at its first failure."""

    def __init__(self, name: str, open_mirror: Callable[[], MetricSink]) -> None:
        self._name = name
        self._mirror: MetricSink | None = None
        self._guarded(lambda: setattr(self, "_mirror", open_mirror()))

    def write(self, record: StepRecord) -> None:
        mirror = self._mirror
        if mirror is not None:
            self._guarded(lambda: mirror.write(record))

    def close(self, outcome: TrialOutcome | None) -> None:
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            self._guarded(lambda: mirror.close(outcome))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever it is, metrics.jsonl has the record
            self._mirror = None
            logger.warning(
                "%s: %s: %s. Trials go on, metrics.jsonl has every record.", self._name, type(error).__name__, error
            )
