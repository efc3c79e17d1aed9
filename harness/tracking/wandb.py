"""Weights & Biases, a mirror of metrics.jsonl: one run per trial, every metric over samples_trained.

It never stops a trial: whatever goes wrong is warned about once and the mirror is left behind.
The client's own files lie under <sweep>/wandb/; `wandb sync` uploads those written offline.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.types import StepRecord, TrialOutcome

if TYPE_CHECKING:
    from harness.plan import PlannedTrial

logger = logging.getLogger(__name__)

INIT_TIMEOUT_S = 15.0
FINISH_TIMEOUT_S = 15.0
_MODES = {"online": "online", "run": "online", "offline": "offline", "dryrun": "offline", "disabled": "disabled"}

_online_failed = False  # in this process: a server that did not answer once is not waited for again
_warned = False


class WandbSink:
    """The W&B run of one trial. Online, a later attempt of the trial joins it; offline, at `wandb sync`."""

    def __init__(self, trial: PlannedTrial, sweep_dir: Path | str, provenance: Mapping[str, Any] | None = None) -> None:
        self._run: Any = None
        mode = tracking_mode()
        if mode == "disabled" or not trial.config.tracking.wandb:
            return
        if mode == "online" and not _online_failed:
            self._guarded(lambda: self._start(trial, Path(sweep_dir), provenance, "online"))
        if self._run is None:
            self._guarded(lambda: self._start(trial, Path(sweep_dir), provenance, "offline"))

    def write(self, record: StepRecord) -> None:
        run = self._run
        if run is not None:
            self._guarded(lambda: run.log(wandb_row(record)))  # never step=: W&B drops rows whose step does not grow

    def close(self, outcome: TrialOutcome | None) -> None:
        if self._run is not None:
            self._guarded(lambda: self._finish(outcome))
            self._run = None

    def _start(self, trial: PlannedTrial, sweep_dir: Path, provenance: Mapping[str, Any] | None, mode: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        config = trial.config
        settings = wandb.Settings(
            console="off",
            silent=True,
            init_timeout=INIT_TIMEOUT_S,
            finish_timeout=FINISH_TIMEOUT_S,
            finish_timeout_raises=True,
            disable_git=True,
            save_code=False,
            symlink=False,
            x_disable_stats=True,
            x_save_requirements=False,
            x_transaction_log_flush_interval=1.0,  # what a kill may lose of the mirror, in seconds
        )
        tags = dict.fromkeys([sweep_dir.name, config.algorithm.name, config.optimizer.lr_rule, *config.tracking.tags])
        run = wandb.init(
            dir=str(sweep_dir),
            mode=mode,  # type: ignore[arg-type]
            project=config.tracking.project,
            entity=config.tracking.entity,
            id=run_id(sweep_dir.name, trial.trial_id),
            name=trial.trial_id,
            group=trial.arm,
            job_type="trial",
            tags=[tag[:64] for tag in tags if tag],
            config={
                **config.model_dump(mode="json"),
                "sweep": sweep_dir.name,
                "arm": trial.arm,
                "axes": dict(trial.axes),
                "provenance": dict(provenance or {}),
            },
            resume="allow",  # offline too: at `wandb sync` a later fragment then joins instead of replacing
            reinit="create_new",
            settings=settings,
        )
        run.define_metric("samples_trained")
        run.define_metric("*", step_metric="samples_trained")
        self._run = run

    def _finish(self, outcome: TrialOutcome | None) -> None:
        assert self._run is not None
        done = outcome is not None and outcome.status in ("completed", "diverged")
        if outcome is not None:
            self._run.summary.update({"outcome": outcome.status, "outcome_reason": outcome.reason})
        self._run.finish(exit_code=0 if done else 1)

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
                first_line = str(error).strip().partition("\n")[0][:200]
                logger.warning(
                    "W&B: %s: %s. Trials go on, metrics.jsonl has every record; the mirror may miss some.",
                    type(error).__name__,
                    first_line,
                )
            with contextlib.suppress(
                Exception
            ):  # a client whose core process has died must be torn down to start again
                import wandb

                wandb.teardown()


def tracking_mode() -> str:
    """`online`, `offline` or `disabled`: what WANDB_MODE says, offline where it says nothing known."""
    return _MODES.get(os.environ.get("WANDB_MODE", "").strip().lower(), "offline")


def run_id(sweep: str, trial_id: str) -> str:
    """The trial's W&B id: always the same, and within W&B's 64 characters.

    >>> run_id("default", "P8-G8-sqrt-s0-0badcafe")
    '1d43384b28dab860'
    """
    return hashlib.sha256(f"{sweep}/{trial_id}".encode()).hexdigest()[:16]


def wandb_row(record: StepRecord) -> dict[str, float]:
    """Everything of a record that is a number, in one flat row with samples_trained.

    >>> wandb_row(StepRecord("eval", 64, 72, 1, 2.5, {"eval/score": 0.5}, {"lr": 1e-3, "seconds": {"train": 0.25}}))
    ... # doctest: +NORMALIZE_WHITESPACE
    {'samples_trained': 64, 'samples_generated': 72, 'optimizer_steps': 1, 'wall_s': 2.5, 'eval/score': 0.5,
     'lr': 0.001, 'seconds/train': 0.25}
    """
    content = record.as_json()
    row: dict[str, float] = {}
    for name, value in content.items():
        if name == "metrics":
            row.update(value)
        elif isinstance(value, Mapping):
            row.update({f"{name}/{key}": number for key, number in value.items()})
        elif isinstance(value, int | float):
            row[name] = value
    return row
