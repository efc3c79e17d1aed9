"""A trial whose engine is another process: it generates while the trial trains, dies, and is accounted for."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from harness.members import Answer, Members, in_process
from harness.parts import Parts, build_parts
from harness.plan import Plan, PlannedTrial, Target
from harness.run_dir import RunDir
from harness.streaming import open_intake
from harness.sweep import run_sweep
from harness.tracking.jsonl import read_records
from harness.update import Progress, run_update
from tests.harness.faults import wait_until
from tests.harness.real_faults import members_of
from tests.harness.small import planned_trial

STREAMING: dict[str, Any] = {
    "execution": {"mode": "streaming", "engine_replicas": 1, "layout": "separate", "checkpoint_every_samples": 64},
    "batch__gen_batch": 32,
    "sampling__max_response_tokens": 24,
    "timing": {"rounds": 0},
}


def run(trial: PlannedTrial, root: Path) -> int:
    plan = Plan("small", "Does it get lost?", trial.arm, Target("eval/expected_score", 0.7), (trial,))
    return run_sweep(plan, plan.trials, root)


def train_rows(root: Path, trial: PlannedTrial) -> list[dict[str, Any]]:
    """The last row of each update."""
    records, num_bad = read_records(root / "small" / "trials" / trial.trial_id / "metrics.jsonl")
    assert num_bad == 0
    return list({r["samples_trained"]: r for r in records if r["kind"] == "train"}.values())


def assert_accounted_for(rows: list[dict[str, Any]]) -> None:
    dropped = np.cumsum([row["samples_dropped"] for row in rows])
    for row, gone in zip(rows, dropped.tolist(), strict=True):
        assert row["samples_generated"] == row["samples_trained"] + gone + row["samples_in_flight"]


def test_an_engine_killed_in_mid_stream_costs_what_was_in_flight_and_no_attempt(cluster: str, tmp_path: Path) -> None:
    trial = planned_trial(budget_samples=2048, **STREAMING)
    metrics = tmp_path / "small" / "trials" / trial.trial_id / "metrics.jsonl"
    killed = []

    def kill() -> None:
        wait_until(lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) > 20)
        for process in members_of(psutil.Process()):  # of this Ray: others may run on the machine
            process.kill()
            killed.append(process.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    assert run(trial, tmp_path) == 0
    killer.join()
    assert len(killed) == 1
    outcome = RunDir(metrics.parent).outcome()
    assert outcome is not None and (outcome.status, outcome.samples_trained, outcome.attempts) == ("completed", 2048, 2)
    rows = train_rows(tmp_path, trial)
    assert [row["samples_trained"] for row in rows] == list(range(16, 2049, 16))
    assert_accounted_for(rows)
    log = (metrics.parent / "trial.log").read_text()
    kept = int(re.findall(r"goes on from its checkpoint at ([\d,]+) samples", log)[-1].replace(",", ""))
    in_flight = {row["samples_trained"]: row["samples_in_flight"] for row in rows}  # none, if the trainer is slower
    dropped = {row["samples_trained"]: row["samples_dropped"] for row in rows}
    assert dropped == {**dict.fromkeys(dropped, 0), kept + 16: in_flight[kept]}


class _Faulty:
    """Members whose calls of one method fail from a certain one on, or take long."""

    def __init__(self, members: Members, method: str, good: int = 10**9, seconds: float = 0.0) -> None:
        self.members, self.method, self.good, self.seconds = members, method, good, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.members, name)

    def start(self, member: int, method: str, *args: Any) -> Answer:
        if method == self.method:
            time.sleep(self.seconds)
            self.good -= 1
            if self.good < 0:
                raise ConnectionError("the weights did not arrive")
        return self.members.start(member, method, *args)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A trial with a faulty engine in a thread of this process."""
    with ExitStack() as stack:

        def start(**faults: Any) -> tuple[Parts, Progress, Any]:
            config = planned_trial(**STREAMING).config
            parts = build_parts(config, tmp_path, lambda *args: _Faulty(in_process(*args), **faults))
            stack.callback(parts.close)
            progress = Progress()
            return parts, progress, open_intake(parts, progress)

        yield start


def test_a_weight_push_that_fails_ends_the_attempt_with_its_reason(opened: Callable[..., Any]) -> None:
    parts, progress, intake = opened(method="update_weights", good=2)
    run_update(parts, progress, intake)
    run_update(parts, progress, intake)
    with pytest.raises(ConnectionError, match="the weights did not arrive"):
        run_update(parts, progress, intake)


def test_a_slow_trainer_finds_a_bounded_queue_and_an_idle_engine(opened: Callable[..., Any]) -> None:
    """The engine runs on in its thread; here the trainer does nothing for half a second."""
    parts, progress, intake = opened(method="")
    run_update(parts, progress, intake)
    intake.usage()
    time.sleep(0.5)
    intake.source.poll(0)
    held = intake.samples_in_flight
    time.sleep(0.3)
    intake.source.poll(0)
    assert intake.samples_in_flight == held <= 16 + 4 * 32
    assert intake.usage()["busy_frac"] < 0.9
    for _ in range(3):
        run_update(parts, progress, intake)  # and the trial goes on from there


def test_a_slow_engine_makes_the_trainer_wait_and_nothing_else(opened: Callable[..., Any]) -> None:
    parts, progress, intake = opened(method="collect", seconds=0.05)
    update = run_update(parts, progress, intake)
    assert update.seconds["generate"] >= 0.05 and update.samples_trained == 16


def test_pauses_hold_the_engine(opened: Callable[..., Any]) -> None:
    parts, progress, intake = opened(method="")
    run_update(parts, progress, intake)
    with intake.paused():
        intake.source.poll(0)
        begun = intake.samples_generated
        time.sleep(0.2)
        intake.source.poll(0)
        assert intake.samples_generated == begun
    assert run_update(parts, progress, intake).samples_trained == 16
