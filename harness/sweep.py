"""A sweep from its plan to the paths of what was written: warm starts, trials, timing pass, final table.

The work happens in the workers of a pool (harness.jobs), which harness.cluster provides.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from harness.courier import SHARED, Home, open_home
from harness.errors import EnvironmentProblem, InputError
from harness.execution import ExecutionConfig
from harness.jobs import Died, Event, Failed, Finished, Item, Job, Warned, WorkerPool
from harness.model_files import is_made_once
from harness.plan import Plan, PlannedTrial
from harness.plan_file import store_plan
from harness.progress import Display, summary_table
from harness.run_dir import disk_problem, exclusive, is_disk_problem
from harness.signals import deaf_once_interrupted, listen, listening
from harness.tables import console, plain
from harness.timing_pass import Round, keep_measurement, rounds_to_do
from harness.tracking.wandb import tracking_mode
from harness.trial_queue import DONE, TrialQueue, trial_dir

INTERRUPTED = 130
POLL_S = 0.5
MAX_DEATHS_OF_A_JOB = 5

OpenPool = Callable[[ExecutionConfig, int, Home], AbstractContextManager[WorkerPool]]


@dataclass(frozen=True)
class WorkerFunctions:
    """What runs in the workers, each as "module:name"; see the modules for their arguments."""

    run_trial: str = "harness.trial:run_trial"
    prepare: str = "harness.prepare:prepare"
    time_arm: str = "harness.timing:time_arm"


def ray_pool(execution: ExecutionConfig, most: int, home: Home) -> AbstractContextManager[WorkerPool]:
    """Workers on Ray, at most `most`."""
    from harness.cluster.pool import worker_pool

    return worker_pool(execution, most, home)


def run_sweep(
    plan: Plan,
    selected: Sequence[PlannedTrial],
    results_root: Path,
    functions: WorkerFunctions | None = None,
    open_pool: OpenPool = ray_pool,
    time: Sequence[str] | None = None,
    rounds: int | None = None,
    quiet: bool = False,
) -> int:
    """Run the selected trials that are not done, then time the arms. Returns the exit code.

    `time`: the arms to time, whether or not they have run; unset: those with a completed trial. `rounds`: of timing, in
    all calls together; unset: timing.rounds. `quiet`: no table at the end and no word on what comes next.

    0: all done; 1: some failed; 130: Ctrl-C or SIGTERM. EnvironmentProblem (disk, cluster) is raised once
    everything kept so far is safe. The same call goes on with what is missing.
    """
    sweep_dir = results_root / plan.sweep
    execution = _common_execution(selected or plan.trials[:1])
    busy = f"{sweep_dir}: another sweep is running in this folder; wait for it to end, or give another --results DIR"
    try:
        sweep_dir.mkdir(parents=True, exist_ok=True)
        with exclusive(sweep_dir / "lock", 0.0, busy):
            store_plan(plan, sweep_dir)
            with listening():
                made = _Sweep(plan, selected, sweep_dir, functions or WorkerFunctions(), execution, time, rounds, quiet)
                return made.run(open_pool)
    except OSError as error:
        if not is_disk_problem(error):
            raise
        raise disk_problem(error) from error


class _Sweep:
    """One call of run_sweep, its folder locked."""

    def __init__(
        self,
        plan: Plan,
        selected: Sequence[PlannedTrial],
        sweep_dir: Path,
        functions: WorkerFunctions,
        execution: ExecutionConfig,
        timed: Sequence[str] | None,
        rounds: int | None,
        quiet: bool,
    ) -> None:
        self.plan, self.selected, self.sweep_dir = plan, selected, sweep_dir
        self.timed, self.quiet = timed, quiet
        self.rounds = (*selected, *plan.trials)[0].config.timing.rounds if rounds is None else rounds
        self.functions, self.execution = functions, execution
        self.queue = TrialQueue(selected, sweep_dir, functions.run_trial, execution.max_attempts)
        self.timing_path = sweep_dir / "timing.jsonl"
        self.console = console()
        self.warned: set[str] = set()
        self.problems: dict[str, None] = {}  # a set that keeps its order

    def run(self, open_pool: OpenPool) -> int:
        pending = self.queue.pending
        if len(pending) < len(self.selected) and not self.quiet:
            self.tell(f"{len(self.selected) - len(pending)} of {len(self.selected)} trials are done already")
        try:
            if pending or self._rounds():
                most = max(1, min(self.execution.workers or len(pending), len(pending)))
                if not self.quiet:
                    self.tell("starting workers ...")
                with open_pool(self.execution, most, open_home(self.sweep_dir)) as pool:
                    listen()  # again: Ray has set handlers of its own
                    with deaf_once_interrupted():
                        self._run_on(pool)
        except KeyboardInterrupt:
            self.queue.mark_interrupted("stopped by a signal, such as Ctrl-C")
            self.tell("Interrupted. Every record is kept; the same command goes on with what is missing.")
            return INTERRUPTED
        except EnvironmentProblem as problem:
            self.queue.mark_interrupted(str(problem))
            raise
        except OSError as error:
            if is_disk_problem(error):
                self.queue.mark_interrupted(str(disk_problem(error)))
            raise
        return self._end()

    def _run_on(self, pool: WorkerPool) -> None:
        pending = self.queue.pending
        if pending:
            if not self.quiet:
                self.tell(f"workers: {pool.size}, threads each: {self.execution.threads}")
            self._prepare(pool, pending)
            with Display(self.console, f"sweep {self.plan.sweep}", pending, pool.size) as display:
                self.queue.run(pool, display, self.warn)
        self._time(pool)

    def _prepare(self, pool: WorkerPool, pending: Sequence[PlannedTrial]) -> None:
        """Make what the trials share, such as warm starts, and look at what only a tokenizer can tell."""
        pending_configs = [trial.config for trial in pending]
        configs = [config for config in pending_configs if is_made_once(config.model) or config.task.speaks_language]
        distinct = {config.model.model_dump_json() + config.task.model_dump_json(): config for config in configs}
        if distinct and not self.quiet:
            self.tell("models and prompts ...")
        root = self.sweep_dir.parent.resolve()
        jobs = [
            Job(f"start {number}", self.functions.prepare, (config, root), adds=SHARED)
            for number, config in enumerate(distinct.values(), 1)
        ]
        done = 0
        for event in run_jobs(pool, jobs):
            match event:
                case Finished() if len(jobs) > 1 and not self.quiet:
                    done += 1
                    self.tell(f"models and prompts: {done} of {len(jobs)}")
                case Warned(text):
                    self.warn(text)
                case Failed(_, "input", reason):
                    raise InputError(reason)
                case Failed(key, _, reason):  # the trials that need it will fail, and say so in their outcomes
                    self.warn(f"{key}: {reason}")

    def _rounds(self) -> list[Round]:
        """What the timing pass still has to measure: what is asked for, or every arm that has a completed trial."""
        arms = self.timed
        if arms is None:
            outcomes = ((trial.arm, trial_dir(self.sweep_dir, trial).outcome()) for trial in self.plan.trials)
            arms = list(dict.fromkeys(arm for arm, outcome in outcomes if outcome and outcome.status == "completed"))
        return rounds_to_do(self.timing_path, arms, self.rounds)

    def _time(self, pool: WorkerPool) -> None:
        """The timing pass, with one worker and nothing else running."""
        rounds = self._rounds()
        if rounds:
            pool.shrink(1)
        for round_ in rounds:
            name = f"round {round_.number}" if round_.number else "warm-up"
            self.tell(f"timing {len(round_.arms)} arms, nothing else running: {name}")
            for arm in round_.arms:
                self._measure(pool, round_, arm)

    def _measure(self, pool: WorkerPool, round_: Round, arm: str) -> None:
        trial = next(trial for trial in self.plan.trials if trial.arm == arm)
        min_seconds = trial.config.timing.min_seconds if round_.number else 0.0
        arguments = (trial, self.sweep_dir.parent.resolve(), min_seconds)
        for event in run_jobs(pool, [Job(f"timing of {arm}", self.functions.time_arm, arguments)]):
            match event:
                case Item(_, measurement) if round_.number:
                    keep_measurement(self.timing_path, round_, measurement)
                case Warned(text):
                    self.warn(text)
                case Failed(key, _, reason):
                    self.problems[f"{key} failed: {reason}"] = None

    def _end(self) -> int:
        """The final table, what went wrong, and where everything lies; the exit code."""
        if not self.quiet:
            self.console.print(summary_table(self.selected, self.sweep_dir, self.plan.target.metric))
        all_done = True
        for trial in self.selected:
            run = trial_dir(self.sweep_dir, trial)
            outcome = run.outcome()
            if outcome is None or outcome.status not in DONE:
                all_done = False
            if outcome is not None and outcome.status != "completed":
                log = f"; {run.path / 'error.log'}" if outcome.status == "failed" else ""
                self.tell(f"{outcome.status}: {trial.trial_id}: {outcome.reason}{log}")
        for problem in self.problems:
            self.tell(problem)
        if not self.quiet:
            self._tell_where()
        return 0 if all_done and not self.problems else 1

    def _tell_where(self) -> None:
        folder = shlex.quote(str(self.sweep_dir))
        names = [name for name in ("plan.json", "trials", "timing.jsonl", "wandb") if (self.sweep_dir / name).exists()]
        self.tell(f"written in {folder}: {', '.join(names)}")
        if tracking_mode() != "disabled" and any(trial.config.tracking.wandb for trial in self.selected):
            self.tell(f"to send W&B what it lacks: python -m harness sync {folder}")
        self.tell(f"next: python -m analysis report {folder}")

    def warn(self, text: str) -> None:
        """Once for each text: workers meet the same trouble."""
        if text not in self.warned:
            self.warned.add(text)
            self.tell(f"warning: {text}")

    def tell(self, text: str) -> None:
        self.console.print(plain(text), highlight=False, soft_wrap=True)


def run_jobs(pool: WorkerPool, jobs: Sequence[Job]) -> Iterator[Event]:
    """Run jobs to their end and yield their events. One whose worker dies is run again, up to a limit.

    A job that meets an EnvironmentProblem raises it.
    """
    waiting = {job.key: job for job in jobs}
    queue, deaths = list(jobs), 0
    while waiting:
        while queue and pool.free:
            pool.start(queue.pop(0))
        for event in pool.events(POLL_S):
            match event:
                case Failed(_, "environment", reason):
                    raise EnvironmentProblem(reason)
                case Died(key, reason):
                    deaths += 1
                    if deaths >= MAX_DEATHS_OF_A_JOB:
                        raise EnvironmentProblem(f"{key}: its worker died {deaths} times: {reason}")
                    queue.append(waiting[key])
                case Finished(key) | Failed(key):
                    del waiting[key]
            yield event


def _common_execution(selected: Sequence[PlannedTrial]) -> ExecutionConfig:
    """The execution settings that one pool of workers serves; InputError where the trials differ in them."""
    first = selected[0].config.execution
    for trial in selected[1:]:
        for field in ("workers", "threads", "max_attempts", "bundles"):
            mine, other = getattr(first, field), getattr(trial.config.execution, field)
            if mine != other:
                raise InputError(
                    f"execution.{field}: {selected[0].arm} has {mine}, {trial.arm} has {other}; "
                    f"needs one value for all trials of a sweep"
                )
    return first
