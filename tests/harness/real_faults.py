"""Real trials of the embedded model in which something breaks once; what, <results>/faults.json says:

{"<trial_id>": {"kill_member_at": 64}}   a process of the trial beside its own is killed after that record
{"<trial_id>": {"kill_one_member_at": 64}}  only the last of them is
{"<trial_id>": {"kill_at": 64}}          its own process is
{"<trial_id>": {"cut_checkpoint_at": 64}}  so is it, and its newest checkpoint loses its second half
{"<trial_id>": {"cut_record_at": 64}}    so is it, and that record loses its second half
{"<trial_id>": {"nan_reward_at": 64}}    every reward is NaN from then on, in every attempt
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

from harness import trial as real
from harness.plan import Plan, PlannedTrial, Target
from harness.rewards import ScorerInPlace, Scores
from harness.run_dir import RunDir
from harness.sweep import WorkerFunctions
from harness.tracking.jsonl import read_records
from harness.types import StepRecord
from tests.harness.processes import spawn_processes

FUNCTIONS = WorkerFunctions(run_trial=f"{__name__}:run_trial")
CLOCKS = {"wall_s", "seconds", "throughput", "engine", "trainer"}


def plan_of(*trials: PlannedTrial) -> Plan:
    return Plan("small", "Does it get lost?", trials[0].arm, Target("eval/expected_score", 0.7), trials)


def run_trial(trial: PlannedTrial, directory: Path, results_dir: Path, attempt: int = 1) -> Iterator[StepRecord]:
    path = results_dir / "faults.json"
    fault: dict[str, int] = json.loads(path.read_text()).get(trial.trial_id, {}) if path.exists() else {}
    rewards_break_at = fault.get("nan_reward_at")
    score = ScorerInPlace.score
    broken = False

    def break_rewards(self: ScorerInPlace, *args: Any) -> Scores:
        scores = score(self, *args)
        return Scores(np.full_like(scores.scores_S, np.nan)) if broken else scores

    with patch.object(ScorerInPlace, "score", break_rewards):
        for record in real.run_trial(trial, directory, results_dir, attempt):
            yield record
            broken = rewards_break_at is not None and record.samples_trained >= rewards_break_at
            if attempt == 1 and record.samples_trained == fault.get("cut_checkpoint_at"):
                newest = max((directory / "checkpoint").glob("*.pt"))
                os.truncate(newest, newest.stat().st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            if attempt == 1 and record.samples_trained == fault.get("cut_record_at"):
                path = directory / "metrics.jsonl"
                last = path.read_bytes().splitlines(keepends=True)[-1]
                os.truncate(path, path.stat().st_size - len(last) // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            if attempt == 1 and record.samples_trained == fault.get("kill_at"):
                os.kill(os.getpid(), signal.SIGKILL)
            if attempt == 1 and record.samples_trained == fault.get("kill_member_at"):
                for process in members_of(psutil.Process().parent()):
                    process.kill()
            if attempt == 1 and record.samples_trained == fault.get("kill_one_member_at"):
                members_of(psutil.Process().parent())[-1].kill()


def members_of(ancestor: psutil.Process | None) -> list[psutil.Process]:
    """The processes of trials beside their own, among those that `ancestor` (a raylet, or who started it) started."""
    children = ancestor.children(recursive=True) if ancestor else []
    return [child for child in children if child.name().startswith("ray::Member")]


def records_of(results_dir: Path, trial: PlannedTrial) -> dict[tuple[str, int], dict[str, Any]]:
    """What counts: the last record of each (kind, samples_trained), without clocks."""
    records, num_bad = read_records(results_dir / "small" / "trials" / trial.trial_id / "metrics.jsonl")
    assert num_bad == 0
    return {(r["kind"], r["samples_trained"]): {k: v for k, v in r.items() if k not in CLOCKS} for r in records}


def undisturbed(trial: PlannedTrial, root: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The same, of a run without a cluster."""
    directory = root / "small" / "trials" / trial.trial_id
    with patch("harness.parts._spawn_on_ray", lambda execution: spawn_processes):
        for _ in real.run_trial(trial, directory, root):
            pass
    assert (outcome := RunDir(directory).outcome()) is not None and outcome.status == "completed"
    return records_of(root, trial)
