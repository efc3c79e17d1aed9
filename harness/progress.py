"""What a person sees of a running sweep: a live table on a terminal, one line per event anywhere else."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from harness.plan import PlannedTrial
from harness.run_dir import RunDir
from harness.tables import plain
from harness.tracking.jsonl import read_records
from harness.types import TrialOutcome


@dataclass(frozen=True)
class Progress:
    """How far a trial is. `score` is the last evaluation's, None before the first."""

    samples_trained: int
    score: float | None


@dataclass
class _Row:
    """One running trial: when this attempt was first heard of, at how many samples, and where it is now."""

    trial: PlannedTrial
    begun_s: float
    attempt: int = 1
    first: Progress | None = None
    first_s: float = 0.0
    now: Progress = field(default_factory=lambda: Progress(0, None))
    now_s: float = 0.0

    @property
    def samples_per_s(self) -> float | None:
        """Rate of this attempt, evaluations included; None before its second sign of life."""
        if self.first is None or self.now_s <= self.first_s:
            return None
        return (self.now.samples_trained - self.first.samples_trained) / (self.now_s - self.first_s)

    @property
    def left_s(self) -> float | None:
        rate = self.samples_per_s
        return max(0, self.trial.config.budget_samples - self.now.samples_trained) / rate if rate else None


class Display:
    """Follows the trials of a sweep. A context manager: the table lives while it is entered."""

    def __init__(self, console: Console, title: str, trials: Sequence[PlannedTrial], num_workers: int) -> None:
        self.console = console
        self._title = title
        self._queued = list(trials)
        self._num_trials = len(trials)
        self._num_workers = num_workers
        self._rows: dict[str, _Row] = {}
        self._ended: Counter[str] = Counter()
        self._durations_s: dict[str, list[float]] = {}
        self._begun_s = time.monotonic()
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def line(self, text: str) -> None:
        """One line, above the table where there is one."""
        self.console.print(plain(text), highlight=False, soft_wrap=True)

    def started(self, trial: PlannedTrial, attempt: int = 1) -> None:
        self._queued = [queued for queued in self._queued if queued.trial_id != trial.trial_id]
        self._rows[trial.trial_id] = _Row(trial, time.monotonic(), attempt)
        note = f" (attempt {attempt})" if attempt > 1 else ""
        self.line(f"{self._count()} {trial.arm} seed {trial.seed}: started{note}")

    def progressed(self, key: str, progress: Progress) -> None:
        row = self._rows[key]
        row.now, row.now_s = progress, time.monotonic()
        if row.first is None:
            row.first, row.first_s = row.now, row.now_s
            self._tell_where_from(row, progress.samples_trained)

    def _tell_where_from(self, row: _Row, samples: int) -> None:
        """A trial that starts afresh shows itself before its first sample, one that goes on after its first update."""
        name = f"{self._count()} {row.trial.arm} seed {row.trial.seed}"
        if samples > row.trial.config.first_samples:
            self.line(f"{name}: goes on, {samples:,} samples so far")
        elif row.attempt > 1:
            self.line(f"{name}: begins again, no checkpoint was left")

    def stopped(self, key: str, reason: str) -> None:
        """An attempt ended before its trial did: the trial waits for the next."""
        trial = self._rows.pop(key).trial
        self._queued.append(trial)
        self.line(f"{self._count()} {trial.arm} seed {trial.seed}: {reason}")

    def ended(self, key: str, outcome: TrialOutcome) -> None:
        row = self._rows.pop(key)
        self._ended[outcome.status] += 1
        if outcome.status == "completed":
            self._durations_s.setdefault(row.trial.arm, []).append(time.monotonic() - row.begun_s)
        score = "" if row.now.score is None else f", score {row.now.score:.3f}"
        reason = f" ({outcome.reason})" if outcome.reason and outcome.status != "completed" else ""
        self.line(
            f"{self._count()} {row.trial.arm} seed {row.trial.seed}: {outcome.status}{reason}, "
            f"{outcome.samples_trained:,} samples{score}, {outcome.wall_s:.1f} s"
        )

    def _count(self) -> str:
        width = len(str(self._num_trials))
        return f"[{sum(self._ended.values()):>{width}}/{self._num_trials}]"

    def _table(self) -> Group:
        ended = ", ".join(f"{count} {status}" for status, count in self._ended.items()) or "none done"
        left = self._left_s()
        heading = f"{self._title}: {ended} of {self._num_trials}; {clock(time.monotonic() - self._begun_s)} so far"
        table = Table(box=None, pad_edge=False)
        table.add_column("arm", overflow="ellipsis", no_wrap=True)
        for column in ("seed", "samples", "score", "samples/s", "time left"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in self._rows.values():
            table.add_row(
                plain(row.trial.arm),
                str(row.trial.seed),
                f"{row.now.samples_trained:,}/{row.trial.config.budget_samples:,}",
                _shown(row.now.score, ".3f"),
                _shown(row.samples_per_s, ",.0f"),
                "-" if row.left_s is None else clock(row.left_s),
            )
        return Group(plain(heading + ("" if left is None else f", about {clock(left)} left")), table)

    def _left_s(self) -> float | None:
        """Rough: a queued trial takes what its arm took so far, or else what the arm before it takes.

        The longest trials run first, so that this errs on the long side.
        """
        guess = max((row.left_s + row.now_s - row.begun_s for row in self._rows.values() if row.left_s), default=None)
        known = [fmean(durations) for durations in self._durations_s.values()]
        other = known[-1] if known else guess
        if other is None:
            return None
        queued = sum(fmean(self._durations_s.get(trial.arm, [other])) for trial in self._queued)
        running = sum(other if row.left_s is None else row.left_s for row in self._rows.values())
        return (queued + running) / max(1, min(self._num_workers, len(self._rows) + len(self._queued)))


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3725.4)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def summary_table(trials: Iterable[PlannedTrial], sweep_dir: Path, metric: str) -> Table:
    """One row per arm: how its seeds ended, samples trained, last score and samples/s, means over its trials."""
    arms: dict[str, list[PlannedTrial]] = {}
    for trial in trials:
        arms.setdefault(trial.arm, []).append(trial)
    table = Table(box=None, pad_edge=False)
    table.add_column("arm", no_wrap=True)
    table.add_column("seeds")
    for heading in ("samples", f"last {metric}", "samples/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for arm, members in arms.items():
        runs = [RunDir(sweep_dir / "trials" / trial.trial_id) for trial in members]
        outcomes = [run.outcome() for run in runs]
        statuses = Counter("not run" if outcome is None else outcome.status for outcome in outcomes)
        ends = [end for run in runs if (end := _end(run, metric)) is not None]
        scores = [score for _, score, _ in ends if score is not None]
        busy_s = sum(seconds for _, _, seconds in ends)
        table.add_row(
            plain(arm),
            ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())),
            _shown(fmean(samples for samples, _, _ in ends) if ends else None, ",.0f"),
            _shown(fmean(scores) if scores else None, ".3f"),
            _shown(sum(samples for samples, _, _ in ends) / busy_s if busy_s else None, ",.0f"),
        )
    return table


def _end(run: RunDir, metric: str) -> tuple[int, float | None, float] | None:
    """Samples trained, the last score, and the seconds that training took; None for a trial without records."""
    records, _ = read_records(run.metrics_path)
    kept: dict[tuple[Any, Any], dict[str, Any]] = {(r.get("kind"), r.get("samples_trained")): r for r in records}
    if not kept:
        return None
    scores = [r["metrics"][metric] for r in kept.values() if r.get("kind") == "eval" and metric in r["metrics"]]
    seconds = sum(sum(r["seconds"].values()) for r in kept.values() if r.get("kind") == "train" and "seconds" in r)
    return max(r["samples_trained"] for r in kept.values()), scores[-1] if scores else None, seconds


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
