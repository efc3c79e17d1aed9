"""How far a sweep is, read from its folder alone.

Any process may ask at any time; the one that runs the sweep is not disturbed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from harness.plan import Plan, PlannedTrial
from harness.run_dir import is_held
from harness.timing_pass import rounds_to_do
from harness.tracking.jsonl import read_records
from harness.trial_queue import DONE, trial_dir
from harness.types import Status

State = Literal["running", "waiting"] | Status


@dataclass(frozen=True)
class TrialStatus:
    """One trial. `score` is the last evaluation's; the rate counts evaluations too; None where nothing tells.

    A trial waits if no living process has it and it has no outcome: with records it goes on from its last checkpoint.
    """

    trial: PlannedTrial
    state: State
    reason: str
    samples_trained: int
    score: float | None
    samples_per_s: float | None
    silent_s: float | None

    @property
    def left_s(self) -> float | None:
        """Seconds to the budget at the trial's own rate."""
        left = self.trial.config.budget_samples - self.samples_trained
        return max(0, left) / self.samples_per_s if self.samples_per_s else None

    @property
    def whole_s(self) -> float | None:
        """Seconds of the whole budget at the trial's own rate."""
        return self.trial.config.budget_samples / self.samples_per_s if self.samples_per_s else None


@dataclass(frozen=True)
class SweepStatus:
    """All trials of a plan. `is_running`: a living process has the folder; `is_timing`: and only times the arms."""

    plan: Plan
    trials: tuple[TrialStatus, ...]
    is_running: bool
    is_timing: bool

    @property
    def counts(self) -> dict[State, int]:
        """Trials of each state that occurs."""
        return dict(Counter(trial.state for trial in self.trials))

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do here."""
        return not self.is_running and all(trial.state in DONE for trial in self.trials)

    @property
    def samples_per_s(self) -> float | None:
        """Of all running trials together."""
        rates = [trial.samples_per_s for trial in self.trials if trial.state == "running" and trial.samples_per_s]
        return sum(rates) if rates else None

    @property
    def left_s(self) -> float | None:
        """Rough: a waiting trial takes what its arm takes, or else what the other arms do; None where nothing tells.

        As many trials at a time as are running now. Without the timing pass.
        """
        running = [trial for trial in self.trials if trial.state == "running"]
        to_do = [trial for trial in self.trials if trial.state not in DONE and trial.state != "failed"]
        of_arm: dict[str, list[float]] = {}
        for each in self.trials:
            if each.whole_s is not None:
                of_arm.setdefault(each.trial.arm, []).append(each.whole_s)
        if not to_do or not of_arm:
            return None
        other = fmean(fmean(seconds) for seconds in of_arm.values())
        left = [_share_left(each) * fmean(of_arm.get(each.trial.arm, [other])) for each in to_do]
        longest_s = max((each.left_s or 0.0 for each in running), default=0.0)
        return max(sum(left) / max(1, len(running)), longest_s)


def read_status(plan: Plan, sweep_dir: Path, now_s: float) -> SweepStatus:
    """The state of every trial of the plan; `now_s` is the time of day in seconds since the epoch."""
    trials = tuple(_read_trial(trial, sweep_dir, plan.target.metric, now_s) for trial in plan.trials)
    is_running = is_held(sweep_dir / "lock")
    arms = list(dict.fromkeys(each.trial.arm for each in trials if each.state == "completed"))
    none_left = all(each.state in (*DONE, "failed") for each in trials)
    rounds = plan.trials[0].config.timing.rounds if plan.trials else 0
    is_timing = is_running and none_left and bool(rounds_to_do(sweep_dir / "timing.jsonl", arms, rounds))
    return SweepStatus(plan, trials, is_running, is_timing)


def _read_trial(trial: PlannedTrial, sweep_dir: Path, metric: str, now_s: float) -> TrialStatus:
    run = trial_dir(sweep_dir, trial)
    # The lock before the outcome: a trial that ends between the two is not taken for one that waits.
    is_running, outcome = is_held(run.path / "lock"), run.outcome()
    samples, score, rate, written_s = _curve(run.metrics_path, metric)
    state: State = outcome.status if outcome else "running" if is_running else "waiting"
    silent_s = None if state != "running" or written_s is None else max(0.0, now_s - written_s)
    return TrialStatus(trial, state, outcome.reason if outcome else "", samples, score, rate, silent_s)


def _curve(path: Path, metric: str) -> tuple[int, float | None, float | None, float | None]:
    """Samples trained, last score, samples per second, and when the file was last written to."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return 0, None, None, None
    return *_read_curve(path, metric, stat.st_size, stat.st_mtime_ns), stat.st_mtime


@lru_cache(maxsize=100_000)
def _read_curve(path: Path, metric: str, size: int, mtime_ns: int) -> tuple[int, float | None, float | None]:
    """Kept for as long as the file is the same: most trials of a sweep that is watched have ended."""
    records, _ = read_records(path)
    kept = sorted({(r["samples_trained"], r["kind"]): r for r in records}.items(), key=lambda item: item[0][0])
    last = [record for _, record in kept]
    scores = [r["metrics"][metric] for r in last if r["kind"] == "eval" and metric in r["metrics"]]
    return last[-1]["samples_trained"] if last else 0, scores[-1] if scores else None, _rate(last)


def _rate(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Samples per second over the later half of the samples: responses may grow longer in training."""
    timed = [(r["samples_trained"], r["wall_s"]) for r in records if "wall_s" in r]
    recent = [point for point in timed if 2 * point[0] >= timed[-1][0]]
    if len(recent) < 2 or recent[-1][1] <= recent[0][1]:
        return None
    return (recent[-1][0] - recent[0][0]) / (recent[-1][1] - recent[0][1]) or None


def _share_left(status: TrialStatus) -> float:
    budget = status.trial.config.budget_samples
    return max(0, budget - status.samples_trained) / budget
