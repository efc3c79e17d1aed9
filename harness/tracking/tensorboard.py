"""TensorBoard, a mirror of metrics.jsonl for people without an account: tensorboard --logdir results/<sweep>/trials."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config import TrackingConfig
from harness.errors import EnvironmentProblem
from harness.tracking.jsonl import read_records
from harness.tracking.rows import Record, in_order, key_of, repeats, row_of
from harness.types import StepRecord, TrialOutcome

if TYPE_CHECKING:
    from harness.plan import PlannedTrial

FLUSH_EVERY_S = 5


def check_tensorboard(tracking: TrackingConfig) -> None:
    """EnvironmentProblem where the sweep asks for it and the package is missing."""
    if tracking.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise EnvironmentProblem(
            "tracking.tensorboard: true, but the package tensorboard is not installed; run: "
            "pip install 'batch-invariance[tensorboard]'"
        )


class TensorBoardSink:
    """The event file of one trial, every number over samples_trained.

    Each attempt writes it anew from the records on disk: an event file cannot be gone on with, and one that a kill
    cut short misses its end.
    """

    def __init__(self, trial: PlannedTrial, sweep_dir: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = sweep_dir / "trials" / trial.trial_id
        for earlier in (folder / "tensorboard").glob("events.out.tfevents.*"):
            earlier.unlink()
        self._folder, self._repeats = str(folder / "tensorboard"), repeats(trial.config)
        self._writer = SummaryWriter(self._folder, flush_secs=FLUSH_EVERY_S)
        records = in_order(read_records(folder / "metrics.jsonl")[0])
        self._keys = {key_of(record) for record in records}
        for record in records:
            self._add(record)

    def write(self, record: StepRecord) -> None:
        content = record.as_json()
        if key_of(content) in self._keys:
            if self._repeats:  # the file has it
                return
            self._go_back(record.samples_trained)
        self._keys.add(key_of(content))
        self._add(content)

    def _go_back(self, samples: int) -> None:
        """From here on what the file holds of so many samples and more does not count."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer.close()
        self._writer = SummaryWriter(self._folder, purge_step=samples, flush_secs=FLUSH_EVERY_S)
        self._keys = {key for key in self._keys if key[1] < samples}

    def close(self, outcome: TrialOutcome | None) -> None:
        self._writer.close()

    def _add(self, record: Record) -> None:
        row = row_of(record)
        samples = row.pop("samples_trained")
        for name, value in row.items():
            self._writer.add_scalar(name, value, int(samples))
