"""The profile of a sweep: how fast its arms generate and train, with nothing else running and nothing learned.

    results/<sweep>/profile.jsonl   every measurement, appended as it is made
    results/<sweep>/profile.json    what they say: rates with intervals, knees, the memory limit

Arms take turns in rounds, one at a time, as in the timing pass, so that a slow minute hits them all alike.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.arm_names import NOT_OF_THE_TRIAL
from harness.config import ProfileConfig, TrialConfig
from harness.courier import SHARED, open_home
from harness.errors import InputError
from harness.jobs import Failed, Item, Job, Warned, WorkerPool
from harness.model_files import is_made_once
from harness.plan import Plan, PlannedTrial
from harness.plan_file import store_plan
from harness.profile_results import curves, loosest
from harness.profile_table import curve_table, half_width, notes
from harness.run_dir import disk_problem, exclusive, is_disk_problem, write_json
from harness.signals import deaf_once_interrupted, listen, listening
from harness.sweep import OpenPool, ray_pool, run_jobs
from harness.tables import console
from harness.timing_pass import shuffled
from harness.tracking.jsonl import JsonlFile, read_objects

# What speed does not depend on.
NOT_OF_SPEED: dict[str, Any] = NOT_OF_THE_TRIAL | {
    "seed": True,
    "optimizer": {"lr", "lr_ref", "lr_rule", "lr_table", "betas", "betas_ref", "eps", "eps_ref"},
    "critic_optimizer": {"lr", "lr_ref", "lr_rule", "lr_table", "betas", "betas_ref", "eps", "eps_ref"},
    "evaluation": True,
    "statistics": True,
    "budget_samples": True,
}


@dataclass(frozen=True)
class ProfileFunctions:
    """What runs in the worker, each as "module:name"."""

    ensure_start: str = "harness.warm_start:start_folder"
    measure: str = "harness.profiling:measure_arm"
    describe: str = "harness.profiling:describe"


def run_profile(
    plan: Plan,
    selected: Sequence[PlannedTrial],
    settings: ProfileConfig,
    results_root: Path,
    functions: ProfileFunctions | None = None,
    open_pool: OpenPool = ray_pool,
    clock: Callable[[], float] = time.monotonic,
    quiet: bool = False,
) -> int:
    """Measure the selected arms and write both files. Returns the exit code: 0, or 1 where an arm failed.

    Measurements that are there, of the same settings, count: a call that was stopped goes on.
    """
    sweep_dir = results_root / plan.sweep
    busy = f"{sweep_dir}: a sweep is running in this folder; wait for it to end, or give another --results DIR"
    arms = to_measure(selected, settings)
    try:
        sweep_dir.mkdir(parents=True, exist_ok=True)
        with exclusive(sweep_dir / "lock", 0.0, busy):
            store_plan(plan, sweep_dir)
            profile = _Profile(plan, arms, settings, sweep_dir, functions or ProfileFunctions(), clock, quiet)
            profile.load_before = os.getloadavg()[0]
            with listening(), open_pool(arms[0].config.execution, 1, open_home(sweep_dir)) as pool:
                listen()  # again: Ray has set handlers of its own
                with deaf_once_interrupted():
                    profile.run(pool)
            return profile.end()
    except OSError as error:
        if not is_disk_problem(error):
            raise
        raise disk_problem(error) from error


def to_measure(selected: Sequence[PlannedTrial], settings: ProfileConfig) -> list[PlannedTrial]:
    """One trial for each speed that there is to measure, as it is to run: with forced lengths, if asked for."""
    found: dict[str, PlannedTrial] = {}
    for trial in selected:
        forced = replace(trial, config=with_lengths(trial.config, settings.response_tokens))
        found.setdefault(speed_key(forced.config), forced)
    arms = list(found.values())
    for arm in arms[1:]:
        if (arm.config.execution.bundles, arm.config.execution.threads) != (
            arms[0].config.execution.bundles,
            arms[0].config.execution.threads,
        ):
            raise InputError(
                f"execution: {arms[0].arm} and {arm.arm} need different processes, threads or GPUs; a profile has one "
                f"worker, needs --only"
            )
    return arms


def with_lengths(config: TrialConfig, response_tokens: int | None) -> TrialConfig:
    """The trial with every response of so many tokens; None: as it is."""
    if response_tokens is None:
        return config
    forced = {"max_response_tokens": response_tokens, "ignore_end": True}
    return config.model_copy(update={"sampling": config.sampling.model_copy(update=forced)})


def speed_key(config: TrialConfig) -> str:
    """The same for trials that are as fast as one another: 8 hex digits of what speed depends on."""
    content = config.model_dump(mode="json", exclude=NOT_OF_SPEED)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


class _Profile:
    """One call of run_profile, its folder locked."""

    def __init__(
        self,
        plan: Plan,
        arms: Sequence[PlannedTrial],
        settings: ProfileConfig,
        sweep_dir: Path,
        functions: ProfileFunctions,
        clock: Callable[[], float],
        quiet: bool,
    ) -> None:
        self.quiet = quiet
        self.plan, self.arms, self.settings = plan, list(arms), settings
        self.sweep_dir, self.functions, self.clock = sweep_dir, functions, clock
        self.path = sweep_dir / "profile.jsonl"
        self.keys = {arm.arm: speed_key(arm.config) for arm in arms}
        self.lines = [line for line in read_objects(self.path)[0] if self._is_ours(line)]
        self.failed: dict[str, str] = {}
        self.described: dict[str, Any] = {}
        self.why_ended = ""
        self.round_s = self.load_before = 0.0
        self.console = console()

    def run(self, pool: WorkerPool) -> None:
        root = self.sweep_dir.parent.resolve()
        self.tell(f"profile of {len(self.arms)} arms, nothing else should be running")
        smallest = min(self.arms, key=lambda arm: arm.config.batch.train_batch)
        starts = {arm.config.model.model_dump_json(): arm.config for arm in self.arms if is_made_once(arm.config.model)}
        for config in starts.values():
            self._job(pool, Job("the model to start from", self.functions.ensure_start, (config, root), adds=SHARED))
        described = self._job(pool, Job("the machine", self.functions.describe, (smallest.config, root)))
        if not described:
            return
        self.described = described[0]
        self._measure(pool, smallest, 0, 0.0)  # the first in a fresh process is slow
        begun_s = self.clock()
        while self.arms and not self._enough(begun_s):
            number, round_s = self._num_rounds() + 1, self.clock()
            for name in shuffled([arm.arm for arm in self.arms], number):
                arm = next(arm for arm in self.arms if arm.arm == name)
                for line in self._measure(pool, arm, number, self.settings.min_seconds):
                    self._keep({"round": number, "key": self.keys[name], **line})
            self.arms = [arm for arm in self.arms if arm.arm not in self.failed]
            self.round_s = self.clock() - round_s
            width, where = loosest(self._curves())
            shown = "" if math.isinf(width) else f", widest interval {half_width(width)} ({where})"
            self.tell(f"round {number}: {self.round_s:.0f} s{shown}")

    def _enough(self, begun_s: float) -> bool:
        """Whether to end, and why: every interval is narrow, or another round would go past the time limit."""
        done, settings = self._num_rounds(), self.settings
        if done >= settings.least_rounds and loosest(self._curves())[0] <= settings.half_width:
            self.why_ended = f"every 95% interval is within {settings.half_width:.0%} of its mean"
        elif self.round_s and self.clock() - begun_s + self.round_s > settings.limit_s:
            self.why_ended = f"another round would go past the time limit of {settings.limit_s:g} s"
        return bool(self.why_ended)

    def _is_ours(self, line: dict[str, Any]) -> bool:
        """Whether a line of an earlier call measured one of these arms with the same settings."""
        fields = {"round", "arm", "phase", "key", "seconds"}
        return fields <= line.keys() and self.keys.get(str(line["arm"])) == line["key"]

    def _num_rounds(self) -> int:
        """Rounds 1, 2, ... that hold both phases of every arm; none without an arm."""
        if not self.arms:
            return 0
        kept = {(line["round"], line["arm"], line["phase"]) for line in self.lines}
        number = 0
        while all((number + 1, arm.arm, phase) in kept for arm in self.arms for phase in ("generate", "train")):
            number += 1
        return number

    def _curves(self) -> list[dict[str, Any]]:
        done = self._num_rounds()
        return curves([line for line in self.lines if 1 <= line["round"] <= done], self.arms)

    def _measure(self, pool: WorkerPool, arm: PlannedTrial, number: int, min_seconds: float) -> list[dict[str, Any]]:
        arguments = (arm, self.sweep_dir.parent.resolve(), number, min_seconds)
        return self._job(pool, Job(arm.arm, self.functions.measure, arguments))

    def _job(self, pool: WorkerPool, job: Job) -> list[dict[str, Any]]:
        """What the job yielded; [] where it failed, which is told at the end."""
        found = []
        for event in run_jobs(pool, [job]):
            match event:
                case Item(_, line):
                    found.append(line)
                case Warned(text):
                    self.tell(f"warning: {text}")
                case Failed(_, "input", reason):
                    raise InputError(reason)
                case Failed(_, _, reason):
                    self.failed[job.key] = reason
                    return []
        return found

    def _keep(self, line: dict[str, Any]) -> None:
        with closing(JsonlFile(self.path)) as file:
            file.append(line)
        self.lines.append(line)

    def end(self) -> int:
        found = self._curves()
        tokens = self.settings.response_tokens
        content = {
            "format": 1,
            "sweep": self.plan.sweep,
            "reference_arm": self.plan.reference_arm,
            "settings": self.settings.model_dump(mode="json"),
            "lengths": "as the model ends them" if tokens is None else f"forced to {tokens} tokens",
            "rounds": self._num_rounds(),
            "ended": self.why_ended,
            "load_before": self.load_before,
            **self.described,
            "curves": found,
            "failed": [{"arm": arm, "reason": reason} for arm, reason in self.failed.items()],
        }
        write_json(self.sweep_dir / "profile.json", content)
        for curve in () if self.quiet else found:
            self.console.print(curve_table(curve))
            for sentence in notes(curve):
                self.tell(sentence)
        self.tell(f"ended after {content['rounds']} rounds: {self.why_ended or 'no arm is left'}")
        for arm, reason in self.failed.items():
            self.tell(f"failed: {arm}: {reason}")
        self.tell(f"written in {self.sweep_dir}: profile.json, profile.jsonl")
        return 1 if self.failed else 0

    def tell(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
