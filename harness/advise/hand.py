"""Runs what an advice asks for, as ordinary sweeps in folders beside one another."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.advise.brain import Item
from harness.advise.budget import Cost
from harness.advise.plan import Study, as_begun, branch_trial, extended, find, speed_trials
from harness.config import TrialConfig
from harness.errors import InputError
from harness.plan import Plan, PlannedTrial
from harness.plan_file import read_plan
from harness.run_dir import RunDir
from harness.sweep import OpenPool, WorkerFunctions, ray_pool, run_sweep
from harness.tables import console, plain
from harness.timing_pass import rounds_to_do
from harness.trial_queue import trial_dir

# Beside what it measures an arm takes some time to be built.
SECONDS_TO_BUILD = 2.0
# What fewer places in flight cost shows long before the intervals are those of a profile for its own sake.
PROFILE_LIMIT_S = 60.0


def workers_of(config: TrialConfig) -> int:
    """How many trials this machine runs at once."""
    cpus = sum(bundle.cpus for bundle in config.execution.bundles)
    return config.execution.workers or max(1, len(os.sched_getaffinity(0)) // max(1, int(cpus)))


@dataclass(frozen=True)
class Step:
    """What of an answer is run at once: items of one kind. `names` are those of its trials or arms."""

    items: tuple[Item, ...]
    names: tuple[str, ...]
    expected: Cost


class Hand:
    """Knows the folders of one advice, what a step will cost, and how to run it."""

    def __init__(
        self, study: Study, results: Path, functions: WorkerFunctions | None = None, open_pool: OpenPool = ray_pool
    ) -> None:
        self.study, self.results = study, results
        self.functions, self.open_pool = functions, open_pool
        self.folder = results / study.plan.sweep

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those that hold trials."""
        return self.folder, self.results / self.study.branches

    def expected(self, item: Item, seconds_per_sample: float | None) -> Cost:
        """About what it will cost; seconds of samples only where their speed is known."""
        config = self.study.plan.trials[0].config
        if item["do"] == "time":
            each = config.timing.min_seconds + SECONDS_TO_BUILD
            missing = rounds_to_do(
                self.folder / "timing.jsonl", item["arms"], item.get("rounds") or config.timing.rounds
            )
            return Cost(seconds=each * len(item["arms"]) * len(missing))
        if item["do"] == "profile":
            return Cost(seconds=0.0)  # it is given what is left
        samples = item.get("samples") or self._usual_samples(find(self.study.plan, item))
        return Cost(samples, samples * (seconds_per_sample or 0.0))

    def _usual_samples(self, trial: PlannedTrial) -> float:
        """What trials of this sweep took on average that held the target, or else the whole budget."""
        outcomes = [trial_dir(self.folder, one).outcome() for one in self.study.plan.trials]
        taken = [outcome.samples_trained for outcome in outcomes if outcome and outcome.status == "completed"]
        whole = trial.config.num_rollout_batches * trial.config.batch.train_batch
        return min(whole, sum(taken) / len(taken)) if taken else whole

    def failed(self) -> tuple[Item, ...]:
        """The trials and branches that failed, to be run again."""
        planned, found = {(trial.arm, trial.seed) for trial in self.study.plan.trials}, []
        for folder in self.folders:
            plan = read_plan(folder)
            for trial in plan.trials if plan else ():
                outcome, item = trial_dir(folder, trial).outcome(), _again(trial)
                if outcome is not None and outcome.status == "failed" and (item["arm"], item["seed"]) in planned:
                    found.append(item)
        return tuple(found)

    def run(self, items: Sequence[Item], seconds_left: float | None) -> int:
        """Run items of one kind; the exit code of the sweep."""
        match items[0]["do"]:
            case "run":
                trials = list({t.trial_id: t for t in (find(self.study.plan, item) for item in items)}.values())
                return self._sweep(self.study.plan, trials)
            case "branch":
                return self._branch(items)
            case "time":
                arms = self._known([arm for item in items for arm in item["arms"]])
                rounds = max((item.get("rounds") or 0 for item in items), default=0)
                return self._sweep(self.study.plan, [], arms, rounds or None)
            case "profile":
                return self._profile(items, seconds_left)

    def _sweep(
        self, plan: Plan, trials: Sequence[PlannedTrial], time: Sequence[str] = (), rounds: int | None = None
    ) -> int:
        return run_sweep(plan, trials, self.results, self.functions, self.open_pool, time, rounds, quiet=True)

    def _known(self, arms: Sequence[str]) -> list[str]:
        planned = {trial.arm for trial in self.study.plan.trials}
        for arm in arms:
            if arm not in planned:
                raise InputError(f"advice.json asks for {arm}, which is not in the plan")
        return list(dict.fromkeys(arms))

    def _branch(self, items: Sequence[Item]) -> int:
        parents = {f"{self.study.plan.sweep}/trials/{trial.trial_id}" for trial in self.study.plan.trials}
        existing = read_plan(self.results / self.study.branches)
        trials: list[PlannedTrial] = []
        without: dict[str, None] = {}  # a set that keeps its order
        for item in items:
            parent = str(item["trial"])
            if parent not in parents:
                raise InputError(f"advice.json asks for a branch of {parent}, which is no trial of this advice")
            start = _nearest_whole(RunDir(self.results / parent), item["at_samples"])
            if start is None:
                without.setdefault(parent)
            else:
                trials.append(as_begun(existing, branch_trial(self.study, item, start)))
        for parent in without:
            text = f"no branches of {parent}: it has no whole checkpoint"
            console().print(plain(text), highlight=False, soft_wrap=True)
        if not trials:
            return 0
        name, question = self.study.branches, "What does another batch need from the middle of a run of the reference?"
        plan = extended(self.study.plan, name, question, existing, trials)
        return self._sweep(plan, list({trial.trial_id: trial for trial in trials}.values()))

    def _profile(self, items: Sequence[Item], seconds_left: float | None) -> int:
        from harness.profile import run_profile

        arms = self._known([arm for item in items for arm in item["arms"]])
        sizes = {arm: size for item in items for arm, size in item["gen_batch"].items()}
        trials = [trial for arm in arms for trial in speed_trials(self.study, arm, sizes.get(arm, []))]
        settings = self.study.sweep.profile
        limit_s = min(settings.limit_s, PROFILE_LIMIT_S, math.inf if seconds_left is None else max(seconds_left, 1.0))
        settings = settings.model_copy(update={"limit_s": limit_s})
        name, question = self.study.speed, "Are fewer places in flight as fast?"
        plan = extended(self.study.plan, name, question, read_plan(self.results / name), trials)
        return run_profile(plan, trials, settings, self.results, open_pool=self.open_pool, quiet=True)


def _again(trial: PlannedTrial) -> Item:
    """What asks for a trial or a branch that there was before."""
    why, branch = "it failed in an earlier call", trial.config.branch
    if branch is None:
        return {"do": "run", "arm": trial.arm, "seed": trial.seed, "why": why}
    return {
        "do": "branch",
        "arm": trial.axes["branch_of"],
        "seed": trial.seed,
        "trial": branch.trial,
        "at_samples": branch.at_samples,
        "samples": trial.config.budget_samples - branch.at_samples,
        "moments": branch.moments,
        "noise_scale": branch.noise_scale,
        "why": why,
    }


def _nearest_whole(run: RunDir, at_samples: int) -> int | None:
    """Where the nearest checkpoint is that no byte is missing of."""
    near = sorted(run.checkpoints_at(), key=lambda samples: abs(samples - at_samples))
    return next((samples for samples in near if _is_whole(run.checkpoint_path(samples))), None)


def _is_whole(checkpoint: Path) -> bool:
    """Whether it matches its checksums; a model need not fit into this process for that."""
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, EOFError, RuntimeError, OverflowError):
        return False
