"""The W&B run of a trial while it runs.

It never stops a trial: whatever goes wrong is warned about once and the mirror is left behind. The client's own files
lie under <sweep>/wandb/.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.tracking.rows import Attempts, Record, key_of, repeats, row_of
from harness.tracking.wandb import (
    finish,
    in_one_line,
    kept_records,
    mirrored_records,
    open_run,
    run_id,
    teardown,
    tracking_mode,
)
from harness.types import StepRecord, TrialOutcome

if TYPE_CHECKING:
    from harness.plan import PlannedTrial

logger = logging.getLogger(__name__)

INIT_TIMEOUT_S = 15.0
FINISH_TIMEOUT_S = 15.0

_online_failed = False  # in this process: a server that did not answer once is not waited for again
_warned = False


class WandbSink:
    """The W&B run of one trial. Online, a later attempt of the trial joins it and sends first what it lacks."""

    def __init__(self, trial: PlannedTrial, sweep_dir: Path | str, provenance: Mapping[str, Any] | None = None) -> None:
        self._run: Any = None
        mode = tracking_mode()
        if mode == "disabled" or not trial.config.tracking.wandb:
            return
        self._trial, self._sweep_dir, self._provenance = trial, Path(sweep_dir), dict(provenance or {})
        earlier = mirrored_records(self._sweep_dir, trial)
        self._keys, self._attempts = {key_of(record) for record in earlier}, Attempts(earlier)
        self._num_rows, self._num_there = len(earlier), 0
        # Offline each attempt has a folder of its own, and goes on where the folders before it end.
        earlier_folders = any(
            (self._sweep_dir / "wandb").glob(f"*run-*-{run_id(self._sweep_dir.name, trial.trial_id)}")
        )
        if mode == "online" and not _online_failed:
            self._guarded(lambda: self._start("online", earlier, None))
        if self._run is None:
            self._guarded(lambda: self._start("offline", earlier, len(earlier) if earlier_folders else 0))

    def write(self, record: StepRecord) -> None:
        run, content = self._run, record.as_json()
        if run is None:
            return
        if repeats(self._trial.config):
            if key_of(content) in self._keys:  # computed again: the run has it
                return
            self._keys.add(key_of(content))
        else:
            content["attempt"] = self._attempts.of(content)
        self._num_rows += 1
        if self._num_rows > self._num_there:
            self._guarded(lambda: run.log(row_of(content)))  # never step=: W&B drops rows whose step does not grow

    def close(self, outcome: TrialOutcome | None) -> None:
        run = self._run
        if run is not None:
            records = kept_records(self._sweep_dir, self._trial)
            self._guarded(lambda: finish(run, outcome, records))
            self._run = None

    def _start(self, mode: str, earlier: Sequence[Record], num_there: int | None) -> None:
        timeouts = {"init_timeout": INIT_TIMEOUT_S, "finish_timeout": FINISH_TIMEOUT_S}
        run = open_run(self._trial, self._sweep_dir, self._provenance, mode, self._sweep_dir, timeouts)
        self._num_there = run.starting_step if num_there is None else num_there
        for record in earlier[self._num_there :]:
            run.log(row_of(record))
        self._run = run

    def _guarded(self, call: Callable[[], None]) -> None:
        """Do `call`; on any failure drop the run, stay offline from now on, and warn once in this process."""
        global _online_failed, _warned
        try:
            call()
        except Exception as error:  # the client raises its own, the socket's and the operating system's errors
            self._run = None
            _online_failed = True
            if not _warned:
                _warned = True
                logger.warning(
                    "W&B: %s. Trials go on, metrics.jsonl has every record; the mirror may miss some: "
                    "python -m harness sync sends them.",
                    in_one_line(error),
                )
            with contextlib.suppress(
                Exception
            ):  # a client whose core process has died must be torn down to start again
                teardown()
