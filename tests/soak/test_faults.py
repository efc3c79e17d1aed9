"""Faults of what is slow to start or heavy to break: vLLM's process, a rank of DeepSpeed, a machine out of memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.run_dir import RunDir
from harness.sweep import run_sweep
from tests.harness import real_faults
from tests.harness.conftest import LIMIT_S, Driver
from tests.harness.faults import (
    GROWS_TO_BYTES,
    all_undisturbed,
    set_faults,
    small_plan,
    trial_folder,
    wait_until,
)
from tests.harness.nodes import Nodes
from tests.harness.small import LEARNS, planned_trial

pytestmark = pytest.mark.soak
GIB = 2**30


@pytest.mark.parametrize(
    ("changes", "execution", "fault"),
    [
        ({}, {"engine": "vllm"}, "kill_member_at"),
        ({"batch__mini_batch_size": 4}, {"trainer": "deepspeed", "ranks": 2}, "kill_one_member_at"),
    ],
    ids=["vllm", "deepspeed"],
)
def test_a_killed_process_of_a_real_engine_or_trainer_uses_up_no_attempt(
    cluster: str, tmp_path: Path, changes: dict[str, Any], execution: dict[str, Any], fault: str
) -> None:
    settings = {"workers": 1, "max_attempts": 1, "checkpoint_every_samples": 48, **execution}
    trial = planned_trial(execution=settings, budget_samples=160, timing={"rounds": 0}, **LEARNS, **changes)
    plan = real_faults.plan_of(trial)
    set_faults(tmp_path, {trial.trial_id: {fault: 80}})
    assert run_sweep(plan, plan.trials, tmp_path, real_faults.FUNCTIONS) == 0
    folder = tmp_path / "small" / "trials" / trial.trial_id
    outcome = RunDir(folder).outcome()
    assert outcome is not None
    assert (outcome.status, outcome.samples_trained, outcome.attempts) == ("completed", 160, 2)
    assert "goes on from its checkpoint at 48 samples" in (folder / "trial.log").read_text()
    expected = real_faults.undisturbed(trial, tmp_path / "undisturbed")
    found = real_faults.records_of(tmp_path, trial)
    assert found == expected


def test_a_machine_out_of_memory_costs_a_checkpoint_interval_and_says_so(tmp_path: Path, driver: Driver) -> None:
    """Ray ends the process that takes too much before the kernel would end any."""
    memory = psutil.virtual_memory()
    if memory.available < GROWS_TO_BYTES + 2 * GIB:
        pytest.skip("too little memory to use up")
    threshold = (memory.total - memory.available + GROWS_TO_BYTES - 2 * GIB) / memory.total
    monitor = {"RAY_memory_usage_threshold": f"{threshold:.4f}", "RAY_memory_monitor_refresh_ms": "100"}
    plan = small_plan([8], seeds=2)
    greedy = plan.trials[0]
    set_faults(tmp_path, {greedy.trial_id: {"grow_once_at": 320}})
    with Nodes(tmp_path) as nodes:
        nodes.add(2, environment=monitor)
        process = driver(tmp_path, 2, {"max_attempts": 1}, RAY_ADDRESS=nodes.address)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert all_undisturbed(tmp_path, plan) and "2 completed" in output
    assert "seed 0: its worker died (out of memory); goes on from its last checkpoint" in output
    assert "low on memory" in (trial_folder(tmp_path, greedy) / "error.log").read_text()


def test_a_worker_that_outlives_its_node_holds_its_trial_up_and_nothing_else(tmp_path: Path, driver: Driver) -> None:
    """A node may be lost to the cluster only: its worker goes on writing for a while. Here this process has its lock."""
    plan = small_plan([8], seeds=3)
    held = RunDir(trial_folder(tmp_path, plan.trials[0]))
    with held.lock():
        process = driver(tmp_path, 3, {"max_attempts": 1})
        others = [RunDir(trial_folder(tmp_path, trial)) for trial in plan.trials[1:]]
        wait_until(lambda: all(run.outcome() is not None for run in others), process=process)
        time.sleep(20)
        assert process.poll() is None
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert all_undisturbed(tmp_path, plan) and "3 completed" in output
