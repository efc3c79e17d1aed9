"""A sweep does what is missing, retries, records and times; nothing that goes wrong loses a record."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, GPT2Config

from harness.courier import Home
from harness.errors import EnvironmentProblem, InputError
from harness.execution import ExecutionConfig
from harness.jobs import Event
from harness.models import character_tokenizer
from harness.plan import Plan
from harness.plan_file import store_plan
from harness.run_dir import RunDir, exclusive
from harness.sweep import WorkerFunctions, run_sweep
from harness.tracking.jsonl import read_objects, read_records
from tests.harness.faults import FUNCTIONS, InlinePool, set_faults, small_plan, trial_folder, undisturbed, values


def sweep(
    plan: Plan,
    results: Path,
    pool: InlinePool | None = None,
    only: list[int] | None = None,
    functions: WorkerFunctions = FUNCTIONS,
) -> int:
    """Run the plan (or some of its trials, by place) in this process."""

    @contextmanager
    def open_pool(execution: ExecutionConfig, most: int, home: Home) -> Iterator[InlinePool]:
        opened = pool or InlinePool(min(2, most))
        try:
            yield opened
        finally:
            opened.close()

    selected = plan.trials if only is None else [plan.trials[place] for place in only]
    return run_sweep(plan, selected, results, functions, open_pool)


def outcome(plan: Plan, results: Path, place: int) -> Any:
    return RunDir(trial_folder(results, plan.trials[place])).outcome()


def test_every_trial_runs_the_longest_first_and_a_second_call_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 512 samples are 32, 64 and 8 updates at P = 2, 1 and 8 with G = 8.
    plan, pool = small_plan([2, 1, 8], seeds=1), InlinePool(1)
    assert sweep(plan, tmp_path, pool) == 0
    assert pool.started == [plan.trials[place].trial_id for place in (1, 0, 2)]
    assert all(values(tmp_path, trial) == undisturbed(trial) for trial in plan.trials)
    assert Plan.from_json((tmp_path / "faults" / "plan.json").read_text()) == plan
    printed = capsys.readouterr().out
    assert "[0/3] P1-G8-sqrt seed 0: started" in printed
    assert "[3/3] P8-G8-sqrt seed 0: completed, 512 samples, score" in printed
    assert f"next: python -m analysis report {tmp_path}/faults" in printed
    again = InlinePool(1)
    assert sweep(plan, tmp_path, again) == 0 and again.started == []
    assert "3 of 3 trials are done already" in capsys.readouterr().out


def test_the_third_of_six_fails_the_others_do_not_and_the_next_call_runs_only_that_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = small_plan([8], seeds=6)
    third = plan.trials[2]
    set_faults(tmp_path, {third.trial_id: {"raise_at": 256}})
    assert sweep(plan, tmp_path) == 1
    assert [outcome(plan, tmp_path, place).status for place in range(6)] == [
        *["completed"] * 2, "failed", *["completed"] * 3,
    ]  # fmt: skip
    failed = outcome(plan, tmp_path, 2)
    assert failed.reason == "ZeroDivisionError: a made-up mistake"
    # 192 samples are the last record before 256: 3 attempts of 64 a step, the first two from nothing and from 128.
    assert (failed.attempts, failed.samples_trained, failed.optimizer_steps) == (3, 192, 24)
    log = (trial_folder(tmp_path, third) / "error.log").read_text()
    assert log.count("Traceback (most recent call last)") == 3 and "in _break" in log
    assert "5 completed, 1 failed" in capsys.readouterr().out

    set_faults(tmp_path, {})
    pool = InlinePool(2)
    assert sweep(plan, tmp_path, pool) == 0
    assert pool.started == [third.trial_id]
    assert values(tmp_path, third) == undisturbed(third)
    assert outcome(plan, tmp_path, 2).attempts == 4


def test_a_failure_that_passes_is_retried_from_the_checkpoint(tmp_path: Path) -> None:
    plan = small_plan([2], seeds=1)
    set_faults(tmp_path, {plan.trials[0].trial_id: {"raise_once_at": 208}})
    assert sweep(plan, tmp_path) == 0
    assert values(tmp_path, plan.trials[0]) == undisturbed(plan.trials[0])
    samples = [r["samples_trained"] for r in read_records(trial_folder(tmp_path, plan.trials[0]) / "metrics.jsonl")[0]]
    # Steps of 16: up to 192, then again from the checkpoint at 128.
    assert samples == [*range(16, 193, 16), *range(144, 513, 16)]
    assert outcome(plan, tmp_path, 0).attempts == 2


@pytest.mark.parametrize(("deaths", "status"), [(4, "completed"), (5, "failed")])
def test_kills_use_up_no_attempt_until_the_trial_no_longer_gets_on(tmp_path: Path, deaths: int, status: str) -> None:
    plan = small_plan([8], seeds=1, execution={"checkpoint_every_samples": 128, "max_attempts": 1})
    pool = InlinePool(1, deaths={plan.trials[0].trial_id: deaths})
    assert sweep(plan, tmp_path, pool) == (0 if status == "completed" else 1)
    assert outcome(plan, tmp_path, 0).status == status
    assert outcome(plan, tmp_path, 0).attempts == 5


def test_a_warning_from_a_worker_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = small_plan([8], seeds=3)
    set_faults(tmp_path, {trial.trial_id: {"warn_at": 256} for trial in plan.trials})
    assert sweep(plan, tmp_path) == 0
    assert capsys.readouterr().out.count("warning: the mirror is gone") == 1


def test_a_full_disk_stops_the_sweep_and_loses_nothing(tmp_path: Path) -> None:
    plan = small_plan([8], seeds=3)
    set_faults(tmp_path, {plan.trials[1].trial_id: {"disk_full_at": 320}})
    with pytest.raises(EnvironmentProblem, match=r"metrics\.jsonl: File too large; what is written is kept: make room"):
        sweep(plan, tmp_path, InlinePool(1))
    assert values(tmp_path, plan.trials[0]) == undisturbed(plan.trials[0])
    assert values(tmp_path, plan.trials[1]) == undisturbed(plan.trials[1])[:4]
    assert [getattr(outcome(plan, tmp_path, place), "status", None) for place in range(3)] == [
        "completed", "interrupted", None,
    ]  # fmt: skip
    set_faults(tmp_path, {})
    assert sweep(plan, tmp_path) == 0
    assert all(values(tmp_path, trial) == undisturbed(trial) for trial in plan.trials)


def test_a_read_only_results_folder_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, mode: int = 0o777) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(EnvironmentProblem, match=r"faults: Read-only file system; .* give another --results DIR"):
        sweep(small_plan([8], seeds=1), tmp_path)


def test_a_second_sweep_in_one_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    with exclusive(tmp_path / "faults" / "lock", 0.0, ""), pytest.raises(EnvironmentProblem, match="another sweep"):
        sweep(small_plan([8], seeds=1), tmp_path)


class _CtrlC(InlinePool):
    def events(self, timeout_s: float) -> list[Event]:
        events = super().events(timeout_s)
        if len(self.started) == 2:
            raise KeyboardInterrupt
        return events


def test_ctrl_c_marks_what_was_running_and_the_next_call_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = small_plan([8], seeds=3)
    assert sweep(plan, tmp_path, _CtrlC(1)) == 130
    assert "the same command goes on with what is missing" in capsys.readouterr().out
    assert [getattr(outcome(plan, tmp_path, place), "status", None) for place in range(3)] == [
        "completed", "interrupted", None,
    ]  # fmt: skip
    assert sweep(plan, tmp_path) == 0
    assert outcome(plan, tmp_path, 1).attempts == 2


def test_a_plan_on_disk_is_extended_but_its_records_are_never_orphaned(tmp_path: Path) -> None:
    small, large = small_plan([8], seeds=1), small_plan([8, 16], seeds=2)
    assert sweep(small, tmp_path) == 0
    pool = InlinePool(2)
    assert sweep(large, tmp_path, pool) == 0
    assert len(pool.started) == 3
    other = small_plan([8], seeds=1, budget_samples=1024)
    with pytest.raises(InputError, match="budget_samples 512 -> 1024"):
        store_plan(other, tmp_path / "faults")
    assert Plan.from_json((tmp_path / "faults" / "plan.json").read_text()) == large


def test_the_timing_pass_interleaves_the_arms_and_is_done_once(tmp_path: Path) -> None:
    plan = small_plan([8, 16, 32], seeds=1, timing={"rounds": 2, "min_seconds": 0.25})
    pool = InlinePool(2)
    assert sweep(plan, tmp_path, pool) == 0
    assert pool.size == 1
    timed = [line.split() for line in (tmp_path / "timed.log").read_text().splitlines()]
    assert [seconds for _, seconds, _ in timed] == [*["0.0"] * 3, *["0.25"] * 6]  # the warm-up is short
    lines = read_objects(tmp_path / "faults" / "timing.jsonl")[0]
    assert [line["round"] for line in lines] == [1, 1, 1, 2, 2, 2]
    arms = {trial.arm for trial in plan.trials}
    assert {line["arm"] for line in lines[:3]} == {line["arm"] for line in lines[3:]} == arms
    assert lines[0]["samples"] == 64

    assert sweep(plan, tmp_path) == 0  # complete: no new line
    assert len(read_objects(tmp_path / "faults" / "timing.jsonl")[0]) == 6

    (tmp_path / "faults" / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:4]))
    assert sweep(plan, tmp_path) == 0  # the second round missed two arms: it is measured again, whole
    assert [line["round"] for line in read_objects(tmp_path / "faults" / "timing.jsonl")[0]] == [1, 1, 1, 2, 2, 2, 2]


def test_a_timing_that_fails_is_told_and_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = small_plan([8, 16], seeds=1, timing={"rounds": 1})
    set_faults(tmp_path, {"timing P16-G8-sqrt": {"raise": 1}})
    assert sweep(plan, tmp_path) == 1
    assert "timing of P16-G8-sqrt failed: RuntimeError: no time" in capsys.readouterr().out
    assert [line["arm"] for line in read_objects(tmp_path / "faults" / "timing.jsonl")[0]] == ["P8-G8-sqrt"]


def test_each_warm_start_is_built_once_before_the_trials(tmp_path: Path) -> None:
    plan = small_plan(
        [8],
        seeds=2,
        model={"warm_start": {"steps": 1}},
        arms=[{"batch.num_prompts": [8, 16], "model.warm_start.seed": [3, 4]}],
        reference={"batch.num_prompts": 8, "model.warm_start.seed": 3},
    )
    assert sweep(plan, tmp_path, only=[0, 1, 2, 3]) == 0
    assert sorted((tmp_path / "warm_starts.log").read_text().split()) == ["3", "4"]


def test_trials_that_need_different_workers_are_refused(tmp_path: Path) -> None:
    plan = small_plan(
        [8], seeds=1, arms=[{"batch.num_prompts": [8, 16]}, {"batch.num_prompts": 4, "execution.threads": 2}]
    )
    with pytest.raises(InputError, match=r"execution\.threads: P8-G8-sqrt-threads1 has 1, P4-G8-sqrt-threads2 has 2"):
        sweep(plan, tmp_path)


def test_a_prompt_that_does_not_fit_the_model_ends_the_sweep_before_its_trials(tmp_path: Path) -> None:
    tokenizer = character_tokenizer("".join(map(chr, range(32, 127))))
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=32, n_embd=16, n_layer=1, n_head=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    plan = small_plan(
        [8, 16],
        seeds=1,
        model={"name": str(tmp_path / "model")},
        task={"name": "reasoning_gym", "generator": "chain_sum"},
        sampling={"max_response_tokens": 8},
    )
    pool = InlinePool(1)
    with pytest.raises(InputError, match=r"of the 32 tokens that the model's context holds, which leaves 0"):
        sweep(plan, tmp_path, pool, functions=replace(FUNCTIONS, prepare="harness.prepare:prepare"))
    assert pool.started == ["start 1"]  # once for both arms
