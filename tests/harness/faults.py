"""A cheap trial that keeps real records and real checkpoints, and breaks where a test says.

It stands in for harness.trial in tests of what runs the trials. Its metric is a chain: each value depends on
the one before, so that a wrong resume shows. <results>/faults.json (or the file named by FAULTS, for workers that do
not see it) says what goes wrong in which trial, or in all ("*"); "once" means in the first attempt that gets there:

    {"<trial_id>": {"raise_at": 256}}         every attempt raises there
    {"<trial_id>": {"raise_once_at": 256}}    one attempt does
    {"<trial_id>": {"wait_once_at": 256}}     one attempt waits there, to be killed
    {"<trial_id>": {"kill_once_at": 256}}     one attempt is killed there
    {"<trial_id>": {"stop_once_at": 256}}     the process of one attempt is stopped there: nothing in it runs on
    {"<trial_id>": {"memory_once_at": 256}}   one attempt finds no memory there
    {"<trial_id>": {"grow_once_at": 256}}     one attempt takes GROWS_TO_BYTES of memory there, and waits
    {"<trial_id>": {"disk_full_at": 256}}     the kernel refuses the record
    {"<trial_id>": {"die_at": 256}}           every attempt is killed there
    {"<trial_id>": {"kill_at_end": true}}     one attempt is killed once its outcome is written
    {"<trial_id>": {"warn_at": 256}}          a warning is logged there
    {"<trial_id>": {"pause_s": 0.1}}          every step takes that long

Beside that file each trial leaves <trial_id>.pid, and <trial_id>.waited where something happens once; running/ tells
how many trials ran at once.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil

from harness.config import SweepConfig
from harness.jobs import Died, Event, Failed, Finished, Job, execute
from harness.plan import Plan, PlannedTrial, make_plan
from harness.run_dir import RunDir
from harness.sweep import WorkerFunctions
from harness.tracking.jsonl import JsonlSink, read_records
from harness.types import StepRecord, TrialOutcome

GROWS_TO_BYTES = 5 * 2**30
FUNCTIONS = WorkerFunctions(
    run_trial=f"{__name__}:run_trial", prepare=f"{__name__}:no_warm_start", time_arm=f"{__name__}:time_arm"
)


def small_plan(num_prompts: list[int], seeds: int, **changes: Any) -> Plan:
    """A plan of GRPO trials of 512 samples with a checkpoint every 128."""
    data: dict[str, Any] = {
        "sweep": "faults",
        "question": "Does anything get lost?",
        "batch": {"group_size": 8},
        "optimizer": {"lr": 1e-3},
        "evaluation": {"every_samples": 128, "num_prompts": 8},
        "execution": {"checkpoint_every_samples": 128},
        "timing": {"rounds": 0},
        "tracking": {"wandb": False},
        "budget_samples": 512,
        "seeds": seeds,
        "reference": {"batch.num_prompts": num_prompts[0]},
        "arms": [{"batch.num_prompts": num_prompts}],
    }
    return make_plan(SweepConfig.model_validate(data | changes))


def run_trial(trial: PlannedTrial, directory: Path, results_dir: Path, attempt: int = 1) -> Iterator[StepRecord]:
    notes = _Notes(results_dir, trial.trial_id)
    run = RunDir(directory)
    with run.lock(), notes.running():
        run.start(trial.config.model_dump(mode="json"), {})
        state = run.load_checkpoint() or {"samples": 0, "value": trial.seed / 10}
        sink = JsonlSink(run.metrics_path)
        while state["samples"] < trial.config.budget_samples:
            state = {
                "samples": state["samples"] + trial.config.batch.train_batch,
                "value": (3.7 * state["value"] * (1 - state["value"])) if state["value"] else 0.3,
            }
            _break(notes, state["samples"])
            record = _record(state)
            with _no_room_in_files() if notes.fault.get("disk_full_at") == state["samples"] else nullcontext():
                sink.write(record)
            yield record
            if state["samples"] % trial.config.checkpoint_every_samples == 0:
                sink.sync()
                run.save_checkpoint(state, state["samples"])
        n = state["samples"]
        sink.close(None)
        run.write_outcome(TrialOutcome("completed", "", n, n, n // 8, 1.0, attempt))
        if notes.fault.get("kill_at_end") and notes.first_time():
            os.kill(os.getpid(), signal.SIGKILL)


def no_warm_start(config: Any, results_dir: Path) -> None:
    with open(results_dir / "warm_starts.log", "a") as file:
        file.write(f"{config.model.warm_start.seed}\n")


def time_arm(trial: PlannedTrial, results_dir: Path, min_seconds: float) -> dict[str, Any]:
    if _Notes(results_dir, f"timing {trial.arm}").fault:
        raise RuntimeError("no time")
    with open(results_dir / "timed.log", "a") as file:
        file.write(f"{trial.arm} {min_seconds} {os.getpid()}\n")
    return {"arm": trial.arm, "samples": 64, "tokens": 448, "updates": 1, "seconds": {"generate": 0.5}}


def _record(state: dict[str, Any]) -> StepRecord:
    n = state["samples"]
    is_eval = n % 128 == 0
    metrics = {"eval/score": state["value"]} if is_eval else {"reward/mean": state["value"]}
    return StepRecord("eval" if is_eval else "train", n, n, n // 8, n / 1000, metrics)


def _break(notes: _Notes, samples: int) -> None:
    fault = notes.fault
    time.sleep(fault.get("pause_s", 0))
    if fault.get("raise_at") == samples:
        raise ZeroDivisionError("a made-up mistake")
    if fault.get("warn_at") == samples:
        logging.getLogger("harness.tracking").warning("the mirror is gone")
    if fault.get("die_at") == samples:
        os.kill(os.getpid(), signal.SIGKILL)
    for name, action in _ONCE.items():
        if fault.get(f"{name}_once_at") == samples and notes.first_time():
            action()


def _raise() -> None:
    raise ZeroDivisionError("a made-up mistake")


def _find_no_memory() -> None:
    """The kernel gives this process no more address space."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**26, limits[1]))
    try:
        bytearray(2**30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def _grow() -> None:
    held = [b"\1" * 2**26 for _ in range(GROWS_TO_BYTES // 2**26)]
    time.sleep(3600)
    del held


_ONCE: dict[str, Callable[[], None]] = {
    "raise": _raise,
    "wait": lambda: time.sleep(3600),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "memory": _find_no_memory,
    "grow": _grow,
}


class _Notes:
    """What goes wrong in a trial, and what it leaves for the test."""

    def __init__(self, results_dir: Path, name: str) -> None:
        path = Path(os.environ.get("FAULTS", results_dir / "faults.json"))
        faults: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        self.fault = {**faults.get("*", {}), **faults.get(name, {})}
        self._folder, self._name = path.parent, name

    def first_time(self) -> bool:
        note = self._folder / f"{self._name}.waited"
        if note.exists():
            return False
        note.touch()
        return True

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the trials that run, this one included, by locks that no death leaves behind."""
        (self._folder / f"{self._name}.pid").write_text(str(os.getpid()))
        folder = self._folder / "running"
        folder.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".lock", dir=folder, delete=False) as mine:
            fcntl.flock(mine, fcntl.LOCK_EX)
            count = sum(_is_held(path) for path in folder.glob("*.lock"))
            with open(folder / "counts", "a") as counts:
                counts.write(f"{count}\n")
            yield


def _is_held(path: Path) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def most_at_once(results_dir: Path) -> int:
    """The most trials that ever ran at one time."""
    return max(map(int, (results_dir / "running" / "counts").read_text().split()))


@contextmanager
def _no_room_in_files() -> Iterator[None]:
    """The kernel lets this process write no file any further, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def set_faults(results_dir: Path, faults: dict[str, dict[str, Any]]) -> None:
    results_dir.mkdir(parents=True, exist_ok=True)
    (results_dir / "faults.json").write_text(json.dumps(faults))


def is_waiting(results_dir: Path, trial: PlannedTrial) -> bool:
    """Whether its fault that happens once has happened."""
    return (results_dir / f"{trial.trial_id}.waited").exists()


def pid_of(results_dir: Path, trial: PlannedTrial) -> int:
    """The process of its last attempt."""
    return int((results_dir / f"{trial.trial_id}.pid").read_text())


def trial_folder(results_dir: Path, trial: PlannedTrial) -> Path:
    return results_dir / "faults" / "trials" / trial.trial_id


def values(results_dir: Path, trial: PlannedTrial) -> list[tuple[int, float]]:
    """The trial's curve: the last value for each number of samples."""
    records, num_bad = read_records(trial_folder(results_dir, trial) / "metrics.jsonl")
    assert num_bad == 0
    return sorted({r["samples_trained"]: next(iter(r["metrics"].values())) for r in records}.items())


def undisturbed(trial: PlannedTrial) -> list[tuple[int, float]]:
    """The same curve as it must be."""
    value, curve = trial.seed / 10, []
    for samples in range(trial.config.batch.train_batch, 513, trial.config.batch.train_batch):
        value = 3.7 * value * (1 - value) if value else 0.3
        curve.append((samples, value))
    return curve


def all_undisturbed(results_dir: Path, plan: Plan) -> bool:
    return all(values(results_dir, trial) == undisturbed(trial) for trial in plan.trials)


def wait_until(
    condition: Callable[[], bool], limit_s: float = 600.0, process: subprocess.Popen[str] | None = None
) -> None:
    """Return as soon as `condition()` holds; fail when it does not in time, or once `process` has ended without it."""
    end = time.monotonic() + limit_s
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode}:\n{process.communicate()[0]}")
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


class InlinePool:
    """A pool whose jobs run in this process, one event at a time in turn. `deaths` maps a job to how often it dies."""

    def __init__(self, size: int, deaths: dict[str, int] | None = None) -> None:
        self.size = size
        self.deaths = deaths or {}
        self.started: list[str] = []
        self._jobs: list[tuple[Job, Iterator[Event]]] = []

    @property
    def free(self) -> int:
        return self.size - len(self._jobs)

    def start(self, job: Job) -> None:
        self.started.append(job.key)
        self._jobs.append((job, execute(job)))

    def events(self, timeout_s: float) -> list[Event]:
        job, events = self._jobs.pop(0)
        event = next(events)
        if self.deaths.get(job.key, 0) > 0:
            self.deaths[job.key] -= 1
            events.close()
            return [Died(job.key, "killed")]
        if not isinstance(event, Finished | Failed):
            self._jobs.append((job, events))
        return [event]

    def shrink(self, size: int) -> None:
        assert len(self._jobs) <= size
        self.size = size

    def close(self) -> None:
        for _, events in self._jobs:
            events.close()
