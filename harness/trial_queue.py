"""The trials of a sweep that are not done: which runs next, what its end means, when it is tried again."""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import TrialConfig
from harness.errors import EnvironmentProblem
from harness.jobs import Died, Event, Failed, Finished, Item, Job, Warned, WorkerPool, resolve
from harness.plan import PlannedTrial
from harness.progress import Display, Progress
from harness.run_dir import RunDir
from harness.tracking.jsonl import read_records
from harness.types import Status, TrialOutcome

DONE: tuple[Status, ...] = ("completed", "diverged")
MAX_DEATHS_IN_PLACE = 5
MAX_DEATHS_WITHOUT_GAIN = 20
REPORT_EVERY_S = 0.5
MARKING_WAIT_S = 10.0
STACKS_AFTER_FRAC = 0.9


def trial_dir(sweep_dir: Path, trial: PlannedTrial) -> RunDir:
    """Where the trial's files lie."""
    return RunDir(sweep_dir / "trials" / trial.trial_id)


def parent_files(config: TrialConfig) -> tuple[str, ...]:
    """Of a branch, what it reads of its parent, in the results folder."""
    if config.branch is None:
        return ()
    parent = RunDir(config.branch.trial)
    files = parent.path / "config.json", parent.checkpoint_path(config.branch.at_samples)
    return tuple(path.as_posix() for path in files)


def attempt(function: str, trial: PlannedTrial, directory: Path, results_root: Path, number: int) -> Iterator[Progress]:
    """In a worker: one attempt at a trial, telling now and then how far it is.

    Where one that hangs stands still goes to stacks.log, shortly before the pool ends its worker.
    """
    score, told_s, progress = None, 0.0, None
    limit_s = STACKS_AFTER_FRAC * 60 * trial.config.execution.hang_minutes
    with (
        closing(resolve(function)(trial, directory, results_root, number)) as records,
        _stacks_when_still(directory, limit_s) as moving,
    ):
        for record in records:
            moving()
            if record.kind == "eval":
                score = record.metrics.get(trial.config.evaluation.metric, score)
            progress = Progress(record.samples_trained, score)
            if time.monotonic() - told_s >= REPORT_EVERY_S:
                yield progress
                told_s, progress = time.monotonic(), None
    if progress is not None:
        yield progress


@contextmanager
def _stacks_when_still(directory: Path, limit_s: float) -> Iterator[Callable[[], None]]:
    """While entered, the stacks of all threads go to stacks.log `limit_s` after the last call of what is yielded."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "stacks.log"
    with open(path, "a", encoding="utf-8") as file:

        def moving() -> None:
            faulthandler.dump_traceback_later(limit_s, file=file)

        moving()
        try:
            yield moving
        finally:
            faulthandler.cancel_dump_traceback_later()
    with suppress(FileNotFoundError):
        if not path.stat().st_size:
            path.unlink()


@dataclass
class _Work:
    """A trial that is not done, and what happened to it in this call."""

    trial: PlannedTrial
    run: RunDir
    attempts_before: int
    failures: int = 0
    deaths: int = 0
    deaths_in_place: int = 0
    deaths_without_gain: int = 0
    samples_at_death: int = -1
    most_samples: int = -1

    @property
    def attempt(self) -> int:
        """Number of the attempt that is running or comes next, counted over all calls that left an outcome."""
        return self.attempts_before + self.failures + self.deaths + 1


class TrialQueue:
    """Runs trials on a pool until each has an outcome. One that fails is tried again and never stops the others."""

    def __init__(self, trials: Sequence[PlannedTrial], sweep_dir: Path, function: str, max_attempts: int) -> None:
        self._sweep_dir, self._function, self._max_attempts = sweep_dir, function, max_attempts
        self._pending: list[_Work] = []
        self._running: dict[str, _Work] = {}
        for trial in trials:
            run = trial_dir(sweep_dir, trial)
            outcome = run.outcome()
            if outcome is None or outcome.status not in DONE:
                self._pending.append(_Work(trial, run, outcome.attempts if outcome else 0))
        # Small batches make the most updates and take the longest; last, one of them would run alone.
        self._pending.sort(key=lambda work: -work.trial.config.num_rollout_batches)

    @property
    def pending(self) -> list[PlannedTrial]:
        """Trials that wait for a worker, the longest first."""
        return [work.trial for work in self._pending]

    def run(self, pool: WorkerPool, display: Display, warn: Callable[[str], None]) -> None:
        """Run everything. EnvironmentProblem as soon as a trial meets one: the others would meet it too."""
        num_workers = pool.size
        while self._pending or self._running:
            while self._pending and pool.free:
                self._start(self._pending.pop(0), pool, display)
            if pool.size > len(self._pending) + len(self._running):
                pool.shrink(len(self._pending) + len(self._running))
                num_workers = pool.size
            elif pool.size != num_workers:
                num_workers = pool.size
                display.line(f"workers: {num_workers}")
            for event in pool.events(REPORT_EVERY_S):
                if isinstance(event, Warned):
                    warn(event.text)
                else:
                    self._handle(event, display)

    def mark_interrupted(self, reason: str) -> None:
        """Once the workers are stopped: say so in the trials that they left unfinished."""
        for work in self._running.values():
            with suppress(OSError, EnvironmentProblem), work.run.lock(MARKING_WAIT_S):
                if work.run.outcome() is None:
                    work.run.write_outcome(_outcome("interrupted", reason, work.run, work.attempt))

    def _start(self, work: _Work, pool: WorkerPool, display: Display) -> None:
        trial, key = work.trial, work.trial.trial_id
        self._running[key] = work
        # Workers may stand in another folder.
        directory, results = work.run.path.resolve(), self._sweep_dir.parent.resolve()
        arguments = (self._function, trial, directory, results, work.attempt)
        owns = directory.relative_to(results).as_posix()
        adds = f"{self._sweep_dir.name}/wandb"
        pool.start(Job(key, f"{__name__}:{attempt.__name__}", arguments, (owns,), (adds,), parent_files(trial.config)))
        display.started(trial, work.attempt)

    def _handle(self, event: Event, display: Display) -> None:
        match event:
            case Item(key, progress):
                display.progressed(key, progress)
            case Finished(key):
                self._ended(self._running[key], display)
            case Failed(_, "environment", reason):
                raise EnvironmentProblem(reason)
            case Failed(key):
                self._failed(self._running[key], event, display)
            case Died(key):
                self._died(self._running[key], event, display)

    def _ended(self, work: _Work, display: Display) -> None:
        outcome = work.run.outcome()
        if outcome is None:
            reason = "the attempt ended without outcome.json"
            self._failed(work, Failed(work.trial.trial_id, "error", reason, reason), display)
            return
        del self._running[work.trial.trial_id]
        display.ended(work.trial.trial_id, outcome)

    def _failed(self, work: _Work, event: Failed, display: Display) -> None:
        work.run.append_error(f"attempt {work.attempt}\n{event.traceback}")
        work.failures += 1
        again = event.kind == "error" and work.failures < self._max_attempts
        self._again_or_failed(work, again, event.reason, display)

    def _died(self, work: _Work, event: Died, display: Display) -> None:
        """A kill from outside uses up no attempt.

        A trial that kills its worker does so at one place, or at least never gets further.
        """
        work.run.append_error(f"attempt {work.attempt}: its worker died\n{event.reason}")
        samples = _last_record(work.run).get("samples_trained", 0)
        work.deaths += 1
        work.deaths_in_place = work.deaths_in_place + 1 if samples == work.samples_at_death else 1
        work.deaths_without_gain = work.deaths_without_gain + 1 if samples <= work.most_samples else 1
        work.samples_at_death, work.most_samples = samples, max(samples, work.most_samples)
        again = work.deaths_in_place < MAX_DEATHS_IN_PLACE and work.deaths_without_gain < MAX_DEATHS_WITHOUT_GAIN
        told = f"its worker died{_why(event.reason)}"
        last = f"worker died {work.deaths} times, the last at {samples} samples{_why(event.reason)}"
        self._again_or_failed(work, again, told if again else last, display)

    def _again_or_failed(self, work: _Work, again: bool, reason: str, display: Display) -> None:
        key, outcome = work.trial.trial_id, work.run.outcome()
        if outcome is not None and outcome.status in DONE:  # it broke after its last write: nothing is missing
            self._ended(work, display)
            return
        del self._running[key]
        if again:
            self._pending.insert(0, work)
            display.stopped(key, f"{reason}; goes on from its last checkpoint")
        else:
            outcome = _outcome("failed", reason, work.run, work.attempt - 1)
            work.run.write_outcome(outcome)
            display.ended(key, outcome)


def _why(reason: str) -> str:
    """What can be told of a death in few words.

    >>> _why("Task was killed due to the node running low on memory."), _why("unexpected system error")
    (' (out of memory)', '')
    """
    return " (out of memory)" if "low on memory" in reason else ""


def _last_record(run: RunDir) -> dict[str, Any]:
    records, _ = read_records(run.metrics_path)
    return records[-1] if records else {}


def _outcome(status: Status, reason: str, run: RunDir, attempts: int) -> TrialOutcome:
    """The outcome of a trial that did not write its own: its counters are those of its last record."""
    last = _last_record(run)
    return TrialOutcome(
        status=status,
        reason=reason,
        samples_trained=last.get("samples_trained", 0),
        samples_generated=last.get("samples_generated", 0),
        optimizer_steps=last.get("optimizer_steps", 0),
        wall_s=last.get("wall_s", 0.0),
        attempts=attempts,
    )
