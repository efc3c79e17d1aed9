"""What goes wrong on a real Ray loses nothing: the records in the end are those of an undisturbed run, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import EnvironmentProblem
from harness.plan import PlannedTrial
from harness.run_dir import RunDir
from harness.sweep import run_sweep
from harness.tracking.jsonl import read_records
from tests.harness import real_faults
from tests.harness.conftest import LIMIT_S, Driver
from tests.harness.faults import (
    FUNCTIONS,
    all_undisturbed,
    is_waiting,
    most_at_once,
    set_faults,
    small_plan,
    trial_folder,
    undisturbed,
    values,
    wait_until,
)
from tests.harness.nodes import Nodes
from tests.harness.small import LEARNS, planned_trial

TWO_WORKERS: dict[str, Any] = {"checkpoint_every_samples": 128, "workers": 2}


def test_a_sweep_in_which_each_trial_meets_another_fault(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = small_plan([8], seeds=7, execution=TWO_WORKERS | {"hang_minutes": 0.2, "max_attempts": 4})
    killed, without_memory, hung, wrong, well, stopped, killed_at_its_end = plan.trials
    set_faults(
        tmp_path,
        {
            killed.trial_id: {"kill_once_at": 320},
            without_memory.trial_id: {"memory_once_at": 256},
            hung.trial_id: {"wait_once_at": 384},
            wrong.trial_id: {"raise_once_at": 64},
            stopped.trial_id: {"stop_once_at": 448},
            killed_at_its_end.trial_id: {"kill_at_end": True},
        },
    )
    assert run_sweep(plan, plan.trials, tmp_path, FUNCTIONS) == 0
    assert all_undisturbed(tmp_path, plan)
    for trial in plan.trials:
        outcome = RunDir(trial_folder(tmp_path, trial)).outcome()
        assert outcome is not None and (outcome.status, outcome.samples_trained) == ("completed", 512)
        assert outcome.attempts == 1 if trial in (well, killed_at_its_end) else outcome.attempts > 1
    logs = {trial.trial_id: trial_folder(tmp_path, trial) / "error.log" for trial in plan.trials}
    for trial in (killed, killed_at_its_end):
        assert "its worker died" in logs[trial.trial_id].read_text()
    assert "MemoryError" in logs[without_memory.trial_id].read_text()
    assert "no sign of life for 0.2 minutes (execution.hang_minutes)" in logs[hung.trial_id].read_text()
    assert "in _break" in (trial_folder(tmp_path, hung) / "stacks.log").read_text()
    assert "ZeroDivisionError" in logs[wrong.trial_id].read_text()
    printed = capsys.readouterr().out
    assert "7 completed" in printed and "raylet" not in printed
    assert "seed 2: no sign of life for 0.2 minutes" in printed
    assert "seed 5: no sign of life for 0.2 minutes" in printed


def test_a_full_disk_under_a_worker_ends_the_sweep_and_the_next_call_goes_on(cluster: str, tmp_path: Path) -> None:
    plan = small_plan([8], seeds=2, execution=TWO_WORKERS | {"workers": 1})
    second = plan.trials[1]
    set_faults(tmp_path, {second.trial_id: {"disk_full_at": 320}})
    with pytest.raises(EnvironmentProblem, match=r"metrics\.jsonl: File too large; what is written is kept: make room"):
        run_sweep(plan, plan.trials, tmp_path, FUNCTIONS)
    assert values(tmp_path, second) == undisturbed(second)[:4]
    outcome = RunDir(trial_folder(tmp_path, second)).outcome()
    assert outcome is not None and outcome.status == "interrupted" and "File too large" in outcome.reason
    set_faults(tmp_path, {})
    assert run_sweep(plan, plan.trials, tmp_path, FUNCTIONS) == 0
    assert all_undisturbed(tmp_path, plan)


def local_folders(results: Path) -> list[str]:
    """Where the attempts at trials wrote, as they noted it in what they left."""
    return [path.read_text() for path in sorted(results.glob("*.folder"))]


def test_nodes_come_and_go_the_driver_dies_and_some_nodes_do_not_see_the_results(
    tmp_path: Path, driver: Driver
) -> None:
    results = tmp_path / "results"
    plan = small_plan([8], seeds=6, execution=TWO_WORKERS | {"workers": 3})
    seen, unseen = plan.trials[:2]
    set_faults(results, {trial.trial_id: {"wait_once_at": 384} for trial in (seen, unseen)})
    with Nodes(results) as nodes:
        nodes.add(1)
        lost = nodes.add(1, sees_results=False)

        process = driver(results, 6, {"workers": 3, "max_attempts": 1}, RAY_ADDRESS=nodes.address)
        wait_until(lambda: is_waiting(results, seen) and is_waiting(results, unseen), process=process)
        nodes.kill(lost)
        nodes.add(2, sees_results=False)
        # On the new node the trial that was lost goes on, and the others run.
        wait_until(
            lambda: sum(RunDir(trial_folder(results, trial)).outcome() is not None for trial in plan.trials) == 5,
            process=process,
        )
        process.kill()
        process.communicate()

        again = driver(results, 6, {"workers": 3, "max_attempts": 1}, RAY_ADDRESS=nodes.address)
        output, _ = again.communicate(timeout=LIMIT_S)
    assert again.returncode == 0, output
    assert all_undisturbed(results, plan)
    assert "5 of 6 trials are done already" in output and "6 completed" in output
    assert most_at_once(results) <= 3
    for trial in plan.trials:
        records, _ = read_records(trial_folder(results, trial) / "metrics.jsonl")
        samples = [record["samples_trained"] for record in records]
        # One checkpoint interval at most is computed again, by the two that were disturbed.
        assert len(samples) <= (8 + 2 if trial in (seen, unseen) else 8)
        assert json.loads((trial_folder(results, trial) / "outcome.json").read_text())["status"] == "completed"
        assert not list(trial_folder(results, trial).rglob("*.tmp"))


def real_trials(count: int, **execution: Any) -> list[PlannedTrial]:
    """Of 160 samples in updates of 16, with checkpoints at 48 and 96, and at 144."""
    settings: dict[str, Any] = {
        "execution": {"workers": 2, "checkpoint_every_samples": 48, **execution},
        "budget_samples": 160,
        "timing": {"rounds": 0},
        **LEARNS,
    }
    return [planned_trial(seed=seed, **settings) for seed in range(count)]


def test_files_cut_in_half_cost_what_they_held_and_no_attempt(cluster: str, tmp_path: Path) -> None:
    checkpoint_cut, record_cut = real_trials(2, max_attempts=1)
    plan = real_faults.plan_of(checkpoint_cut, record_cut)
    faults = {checkpoint_cut.trial_id: {"cut_checkpoint_at": 112}, record_cut.trial_id: {"cut_record_at": 112}}
    set_faults(tmp_path, faults)
    assert run_sweep(plan, plan.trials, tmp_path, real_faults.FUNCTIONS) == 0
    for trial, goes_on_from in ((checkpoint_cut, 48), (record_cut, 96)):
        folder = tmp_path / "small" / "trials" / trial.trial_id
        outcome = RunDir(folder).outcome()
        assert outcome is not None and (outcome.status, outcome.attempts) == ("completed", 2)
        assert f"goes on from its checkpoint at {goes_on_from} samples" in (folder / "trial.log").read_text()
        assert real_faults.records_of(tmp_path, trial) == real_faults.undisturbed(trial, tmp_path / "undisturbed")


def test_an_engine_killed_a_trial_killed_and_rewards_that_are_no_numbers(cluster: str, tmp_path: Path) -> None:
    engine_killed, killed, nan = real_trials(3, engine_replicas=1, max_attempts=1)
    plan = real_faults.plan_of(engine_killed, killed, nan)
    set_faults(
        tmp_path,
        {
            engine_killed.trial_id: {"kill_member_at": 80},
            killed.trial_id: {"kill_at": 112},
            nan.trial_id: {"nan_reward_at": 80},
        },
    )
    assert run_sweep(plan, plan.trials, tmp_path, real_faults.FUNCTIONS) == 0
    for trial in (engine_killed, killed):
        outcome = RunDir(tmp_path / "small" / "trials" / trial.trial_id).outcome()
        assert outcome is not None and (outcome.status, outcome.attempts) == ("completed", 2)
        assert real_faults.records_of(tmp_path, trial) == real_faults.undisturbed(trial, tmp_path / "undisturbed")
    outcome = RunDir(tmp_path / "small" / "trials" / nan.trial_id).outcome()
    assert outcome is not None
    assert (outcome.status, outcome.samples_trained) == ("diverged", 80)
    assert outcome.reason.startswith("the reward of response 0 ") and outcome.reason.endswith(" is nan")
    # What the broken rewards did is on no record.
    assert max(samples for _, samples in real_faults.records_of(tmp_path, nan)) == 80
