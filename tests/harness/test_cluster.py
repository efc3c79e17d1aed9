"""Trials on a real Ray: kills of a worker and of the driver, signals, and demands that do not fit."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cluster.pool import worker_pool
from harness.errors import EnvironmentProblem
from harness.execution import ExecutionConfig
from harness.fitting import num_fitting
from harness.jobs import Event, Failed, Item, Job
from harness.plan import PlannedTrial
from harness.run_dir import RunDir
from harness.sweep import run_jobs, run_sweep
from harness.tracking.jsonl import read_records
from tests.harness.conftest import LIMIT_S, Driver
from tests.harness.faults import (
    FUNCTIONS,
    all_undisturbed,
    is_waiting,
    most_at_once,
    pid_of,
    set_faults,
    small_plan,
    trial_folder,
    undisturbed,
    values,
    wait_until,
)
from tests.harness.nodes import Nodes

NEEDS = ExecutionConfig()
TWO_WORKERS = {"checkpoint_every_samples": 128, "workers": 2}


def look_around() -> dict[str, Any]:
    import torch

    return {
        "omp": os.environ["OMP_NUM_THREADS"],
        "torch": torch.get_num_threads(),
        "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
        "mode": os.environ.get("WANDB_MODE"),
    }


def cannot_travel() -> Any:
    return threading.Lock()


def items(events: Iterator[Event]) -> list[Any]:
    return [event.value for event in events if isinstance(event, Item)]


def is_alive(results: Path, trial: PlannedTrial) -> bool:
    try:
        os.kill(pid_of(results, trial), 0)
    except ProcessLookupError:
        return False
    return True


def samples_of(results: Path, trial: PlannedTrial) -> list[int]:
    return [r["samples_trained"] for r in read_records(trial_folder(results, trial) / "metrics.jsonl")[0]]


def test_a_worker_keeps_to_its_threads_and_has_the_tracking_settings(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with worker_pool(NEEDS, 1) as pool:
        assert pool.size == 1
        [seen] = items(run_jobs(pool, [Job("look", f"{__name__}:look_around", ())]))
    assert seen == {"omp": "1", "torch": 1, "gpus": "", "mode": "disabled"}


def test_a_value_that_cannot_leave_the_worker_fails_its_job_only(cluster: str) -> None:
    with worker_pool(NEEDS, 1) as pool:
        failures = [
            event
            for event in run_jobs(pool, [Job("lock", f"{__name__}:cannot_travel", ())])
            if isinstance(event, Failed)
        ]
        assert len(failures) == 1 and "pickle" in failures[0].traceback
        assert len(items(run_jobs(pool, [Job("look", f"{__name__}:look_around", ())]))) == 1


def test_a_killed_worker_costs_its_trial_one_checkpoint_interval_and_the_others_nothing(
    cluster: str, tmp_path: Path
) -> None:
    plan = small_plan([8], seeds=4, execution=TWO_WORKERS)
    victim = plan.trials[1]
    set_faults(tmp_path, {victim.trial_id: {"wait_once_at": 384}})

    def kill() -> None:
        wait_until(lambda: is_waiting(tmp_path, victim))
        # The other worker has done everything else meanwhile.
        others = [RunDir(trial_folder(tmp_path, trial)) for trial in plan.trials if trial is not victim]
        wait_until(lambda: all(run.outcome() is not None for run in others))
        os.kill(pid_of(tmp_path, victim), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert run_sweep(plan, plan.trials, tmp_path, FUNCTIONS) == 0
    killer.join()
    assert all_undisturbed(tmp_path, plan)
    # Killed before the record of 384, gone on from the checkpoint of 256: nothing is computed twice but 320.
    assert samples_of(tmp_path, victim) == [64, 128, 192, 256, 320, 320, 384, 448, 512]
    for trial in plan.trials:
        outcome = RunDir(trial_folder(tmp_path, trial)).outcome()
        assert outcome is not None and outcome.attempts == (2 if trial is victim else 1)


def test_a_trial_that_kills_its_workers_fails_alone(cluster: str, tmp_path: Path) -> None:
    plan = small_plan([8], seeds=2, execution=TWO_WORKERS)
    first, second = plan.trials
    set_faults(tmp_path, {first.trial_id: {"die_at": 192}})
    assert run_sweep(plan, plan.trials, tmp_path, FUNCTIONS) == 1
    outcome = RunDir(trial_folder(tmp_path, first)).outcome()
    assert outcome is not None and outcome.status == "failed"
    # Five deaths at one place, each after the checkpoint of 128: 192 is never recorded.
    assert outcome.reason == "worker died 5 times, the last at 128 samples"
    assert (outcome.samples_trained, outcome.attempts) == (128, 5)
    assert "SYSTEM_ERROR" in (trial_folder(tmp_path, first) / "error.log").read_text()
    assert values(tmp_path, second) == undisturbed(second)


def test_a_killed_driver_takes_its_workers_along_and_the_next_call_does_what_is_missing(
    tmp_path: Path, driver: Driver
) -> None:
    plan = small_plan([8], seeds=3, execution=TWO_WORKERS)
    first, second, third = plan.trials
    set_faults(tmp_path, {first.trial_id: {"wait_once_at": 320}, second.trial_id: {"wait_once_at": 448}})
    process = driver(tmp_path, 3)
    wait_until(lambda: is_waiting(tmp_path, first) and is_waiting(tmp_path, second), process=process)
    with pytest.raises(EnvironmentProblem, match="another sweep is running"):
        run_sweep(plan, plan.trials, tmp_path, FUNCTIONS)
    process.kill()
    process.communicate()
    wait_until(lambda: not is_alive(tmp_path, first) and not is_alive(tmp_path, second))

    again = driver(tmp_path, 3)
    output, _ = again.communicate(timeout=LIMIT_S)
    assert again.returncode == 0, output
    assert all_undisturbed(tmp_path, plan)
    # Checkpoints stand at multiples of 128.
    assert samples_of(tmp_path, first) == [64, 128, 192, 256, 320, 384, 448, 512]
    assert samples_of(tmp_path, second) == [64, 128, 192, 256, 320, 384, 448, 512]
    assert samples_of(tmp_path, third) == [64, 128, 192, 256, 320, 384, 448, 512]
    assert most_at_once(tmp_path) == 2
    assert "Traceback" not in output and "raylet" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_workers_and_ends_with_130(
    cluster: str, tmp_path: Path, driver: Driver, number: signal.Signals
) -> None:
    plan = small_plan([8], seeds=3, execution=TWO_WORKERS)
    first, second, third = plan.trials
    set_faults(tmp_path, {trial.trial_id: {"wait_once_at": 256} for trial in (first, second)})
    process = driver(tmp_path, 3, RAY_ADDRESS=cluster)
    wait_until(lambda: is_waiting(tmp_path, first) and is_waiting(tmp_path, second), process=process)
    os.killpg(process.pid, number)  # as a terminal does
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, output
    assert "Interrupted. Every record is kept; the same command goes on with what is missing." in output
    assert "Traceback" not in output
    for trial in (first, second):
        outcome = RunDir(trial_folder(tmp_path, trial)).outcome()
        assert outcome is not None and (outcome.status, outcome.samples_trained) == ("interrupted", 192)
        wait_until(lambda trial=trial: not is_alive(tmp_path, trial))
    assert not trial_folder(tmp_path, third).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_ray_starts_ends_with_130_and_leaves_nothing(
    tmp_path: Path, driver: Driver, number: signal.Signals
) -> None:
    process = driver(tmp_path, 1)
    assert process.stdout is not None and process.stdout.readline() == "starting workers ...\n"
    started = psutil.Process(process.pid)
    wait_until(lambda: bool(started.children()), process=process)
    children = started.children(recursive=True)
    process.send_signal(number)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, output
    assert "Interrupted. Every record is kept" in output and "Traceback" not in output
    assert not psutil.wait_procs(children, timeout=60)[1]
    assert not trial_folder(tmp_path, small_plan([8], seeds=1).trials[0]).exists()


def test_a_demand_that_never_fits_names_the_short_resource(tmp_path: Path) -> None:
    nodes = [{"CPU": 4.0}, {"CPU": 2.0, "GPU": 1.0}]
    with pytest.raises(
        EnvironmentProblem, match=r"CPU: a worker needs 8 \(execution.threads\), the largest node has 4"
    ):
        num_fitting(nodes, ExecutionConfig(threads=8))
    with pytest.raises(EnvironmentProblem, match=r"GPU: a worker needs 2 \(execution.gpus_per_rank\)"):
        num_fitting(nodes, ExecutionConfig(gpus_per_rank=2.0))
    with pytest.raises(EnvironmentProblem, match="no node has 4 CPUs and 1 GPUs together"):
        num_fitting(nodes, ExecutionConfig(threads=4, gpus_per_rank=1.0))
    many = os.cpu_count() or 1
    plan = small_plan([8], seeds=1, execution={"threads": 2 * many})
    with pytest.raises(EnvironmentProblem, match=f"CPU: a worker needs {2 * many}"):
        run_sweep(plan, plan.trials, tmp_path, FUNCTIONS)


@pytest.mark.parametrize(
    ("demand", "short"),
    [
        ({"threads": 4096}, r"CPU: a worker needs 4096 \(execution.threads\), the largest node has \d+"),
        ({"gpus_per_rank": 512.0}, r"GPU: a worker needs 512 \(execution.gpus_per_rank\), the largest node has \d+"),
        ({"resources": {"tape": 1}}, r"tape: a worker needs 1 \(execution.resources\), the largest node has 0"),
    ],
)
def test_a_cluster_on_which_no_trial_can_ever_run_is_refused(
    demand: dict[str, Any], short: str, cluster: str, tmp_path: Path
) -> None:
    plan = small_plan([8], seeds=1, execution=demand)
    with pytest.raises(EnvironmentProblem, match=short):
        run_sweep(plan, plan.trials, tmp_path, FUNCTIONS)
    assert not trial_folder(tmp_path, plan.trials[0]).exists()


def test_a_cluster_that_is_gone_with_its_head_ends_the_sweep_and_a_new_one_goes_on(
    tmp_path: Path, driver: Driver
) -> None:
    plan = small_plan([8], seeds=3, execution=TWO_WORKERS)
    first, second, _ = plan.trials
    set_faults(tmp_path, {first.trial_id: {"wait_once_at": 320}, second.trial_id: {"wait_once_at": 448}})
    with Nodes(tmp_path) as nodes:
        nodes.add(2, sees_results=False)
        process = driver(tmp_path, 3, RAY_ADDRESS=nodes.address)
        wait_until(lambda: is_waiting(tmp_path, first) and is_waiting(tmp_path, second), process=process)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3, output
    assert "error: the head of the Ray cluster is gone; the same command goes on" in output
    # Another cluster, of other nodes, with one place where a custom resource is.
    with Nodes(tmp_path) as nodes:
        nodes.add(1)
        nodes.add(1, sees_results=False, tape=1)
        again = driver(tmp_path, 3, {"resources": {"tape": 1}}, RAY_ADDRESS=nodes.address)
        output, _ = again.communicate(timeout=LIMIT_S)
    assert again.returncode == 0, output
    assert all_undisturbed(tmp_path, plan) and "3 completed" in output
    # What had not reached the driver is computed again; the worker is PIECES_AT_A_TIME ahead of it at most.
    assert all(samples_of(tmp_path, trial).count(n) <= 2 for trial in plan.trials for n in range(64, 513, 64))
    # One node has the resource: one trial at a time there, and none on the other.
    assert "workers: 1, threads each: 1" in output


def test_a_cluster_that_does_not_answer_is_an_environment_problem(tmp_path: Path, driver: Driver) -> None:
    process = driver(tmp_path, 1, RAY_ADDRESS="127.0.0.1:9")
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3
    assert "error: the Ray cluster at RAY_ADDRESS=127.0.0.1:9 cannot be reached" in output


def test_more_gpus_than_there_can_be_is_told_by_its_name() -> None:
    """The check before Ray starts counts CPUs only; what it is told of GPUs must be a number it can divide."""
    needs = ExecutionConfig(gpus_per_rank=1.0)
    assert num_fitting([{"CPU": 2, "GPU": 1024}], needs) == 2
    with pytest.raises(EnvironmentProblem, match=r"GPU: a worker needs 1 \(execution.gpus_per_rank\)"):
        num_fitting([{"CPU": 2.0}], needs)
