"""A trial over several processes on a real Ray: the same numbers, and all of it gone when the trial is."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cluster.pool import worker_pool
from harness.errors import EnvironmentProblem
from harness.execution import ExecutionConfig
from harness.fitting import num_fitting
from harness.jobs import Died, Event, Item, Job
from harness.plan import Plan, Target
from harness.run_dir import RunDir
from harness.sweep import run_jobs, run_sweep
from harness.tracking.jsonl import read_records
from harness.trial import run_trial
from tests.harness.faults import wait_until
from tests.harness.small import planned_trial, trial_dir

TWO_ENGINES = ExecutionConfig(engine_replicas=2)


class Sleeper:
    """A member that says who it is and stays."""

    def __init__(self, number: int) -> None:
        self.number = number

    def who(self) -> tuple[int, int]:
        return self.number, os.getpid()


class Stillborn:
    """A member that cannot be made."""

    def __init__(self) -> None:
        raise EnvironmentProblem("the package that it needs is missing")


def meet_stillborn() -> None:
    """In a worker: start a member that cannot be made, and ask it."""
    from harness.cluster.processes import spawner
    from harness.members import call_all

    call_all(spawner(TWO_ENGINES)("engine", f"{__name__}:Stillborn", [()]), "who")


def meet(execution: ExecutionConfig, die: bool) -> Any:
    """In a worker: start two members, let them answer, and kill one if told to."""
    from harness.cluster.processes import spawner
    from harness.members import call_all

    members = spawner(execution)("engine", f"{__name__}:Sleeper", [(0,), (1,)])
    found = call_all(members, "who")
    yield {"trial": os.getpid(), "members": found, "shared": members.share([1, 2]).get()}
    if die:
        os.kill(found[1][1], signal.SIGKILL)
        call_all(members, "who")


def test_what_a_trial_occupies() -> None:
    three = ExecutionConfig(trainer="deepspeed", ranks=2, engine_replicas=1, layout="separate", gpus_per_rank=1.0)
    with pytest.raises(EnvironmentProblem, match=r"CPU: a trial needs 3 for its 3 processes .* the cluster has 2"):
        num_fitting([{"CPU": 2.0, "GPU": 2.0}], three)
    with pytest.raises(EnvironmentProblem, match=r"GPU: a trial needs 2 for its 3 processes .* the cluster has 1"):
        num_fitting([{"CPU": 8.0, "GPU": 1.0}], three)
    # 2 GPUs and 3 CPUs a trial: the node of 8 CPUs and 4 GPUs holds two, the small one none.
    assert num_fitting([{"CPU": 8.0, "GPU": 4.0}, {"CPU": 2.0, "GPU": 1.0}], three) == 2
    # Taking turns on one GPU, two ranks and two engines need two bundles.
    turns = three.model_copy(update={"layout": "colocated", "engine_replicas": 2})
    assert [bundle.gpus for bundle in turns.bundles] == [1.0, 1.0]
    assert turns.place("engine", 1) == (1, turns.bundles[1].__class__(0, 0.5))


def test_a_trials_processes_answer_share_and_end_with_it(cluster: str) -> None:
    with worker_pool(TWO_ENGINES, 1) as pool:
        events = list(run_jobs(pool, [Job("meet", f"{__name__}:meet", (TWO_ENGINES, False))]))
        [met] = [event.value for event in events if isinstance(event, Item)]
        assert [number for number, _ in met["members"]] == [0, 1]
        assert met["shared"] == [1, 2]
        processes = {pid for _, pid in met["members"]}
        assert len(processes | {met["trial"]}) == 3
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in processes | {met["trial"]}))


def test_a_process_that_cannot_be_made_says_why(cluster: str) -> None:
    with worker_pool(TWO_ENGINES, 1) as pool, pytest.raises(EnvironmentProblem, match="package that it needs"):
        list(run_jobs(pool, [Job("meet", f"{__name__}:meet_stillborn", ())]))


def test_a_killed_process_of_a_trial_is_a_death_not_a_failure(cluster: str) -> None:
    with worker_pool(TWO_ENGINES, 1) as pool:
        wait_until(lambda: not pool.events(0.5) and pool.free == 1)
        pool.start(Job("meet", f"{__name__}:meet", (TWO_ENGINES, True)))
        events: list[Event] = []
        while not pool.free:
            events += pool.events(0.5)
    assert [type(event) for event in events] == [Item, Died]


@pytest.mark.parametrize("execution", [{"engine_replicas": 1, "layout": "separate"}, {"engine_replicas": 2}])
def test_a_sweep_with_engines_of_their_own_gives_the_same_numbers(
    cluster: str, tmp_path: Path, execution: dict[str, Any]
) -> None:
    alone = planned_trial()
    list(run_trial(alone, trial_dir(tmp_path / "alone"), tmp_path))
    trial = planned_trial(execution=execution | {"max_attempts": 1}, timing={"rounds": 0})
    plan = Plan("small", "Same?", trial.arm, Target("eval/expected_score", 0.7), (trial,))
    assert run_sweep(plan, plan.trials, tmp_path) == 0
    ours, _ = read_records(tmp_path / "small" / "trials" / trial.trial_id / "metrics.jsonl")
    theirs, _ = read_records(RunDir(trial_dir(tmp_path / "alone")).metrics_path)
    assert len(ours) == len(theirs) == 13  # 8 updates, 5 evaluations
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["samples_trained"] == other["samples_trained"]
        assert mine["metrics"] == pytest.approx(other["metrics"], rel=1e-3, abs=1e-5)
        if mine["kind"] == "train":
            assert mine["metrics"]["policy/logprob_gap_max"] < 1e-5
