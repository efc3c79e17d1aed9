"""Killed at any point, a trial goes on to the same records, bit for bit (invariants 6 and 9)."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.run_dir import RunDir
from harness.tracking.jsonl import read_records
from tests.harness.small import planned_trial, trial_dir

NUM_KILLS = 20

# One process that has imported torch; every attempt is a fork of it.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.harness.test_resume", "harness.trial", "tests.harness.small"])


def settings() -> dict[str, Any]:
    return {"budget_samples": 160, "execution__checkpoint_every_samples": 48, "evaluation__every_samples": 32}


def attempt(root: Path, name: str, kill_at: int | None) -> None:
    """Run the trial; die by SIGKILL at the `kill_at`-th step of its life, in the middle of it if it is a write."""
    import torch

    torch.set_num_threads(1)
    from harness import evaluation, run_dir, trial, update
    from harness.tracking import jsonl

    steps = Steps(kill_at)
    for module, function in [
        (update, "generate"),
        (update, "reward"),
        (update, "train"),
        (trial, "evaluate"),
        (trial, "_save"),
        (evaluation, "score_groups"),
    ]:
        setattr(module, function, steps.counted(getattr(module, function)))
    jsonl.os = Torn(steps)  # type: ignore[assignment]
    run_dir.os = Torn(steps)  # type: ignore[assignment]
    for _ in trial.run_trial(planned_trial(**settings()), trial_dir(root, name), root):
        pass
    (root / f"{name}.steps").write_text(str(steps.taken))


class Steps:
    """Counts the phases and writes of an attempt and kills the process at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.kill_at = kill_at
        self.taken = 0

    def is_last(self) -> bool:
        self.taken += 1
        return self.taken == self.kill_at

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.is_last():
                die()
            return function(*arguments, **named)

        return call


class Torn:
    """The os module, in which a fatal write leaves half a line and a fatal rename or flush does not happen."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, line: bytes) -> int:
        if self.steps.is_last():
            os.write(descriptor, line[: len(line) // 2])
            die()
        return os.write(descriptor, line)

    def replace(self, source: Path, target: Path) -> None:
        if self.steps.is_last():
            die()
        os.replace(source, target)

    def fsync(self, descriptor: int) -> None:
        if self.steps.is_last():
            die()
        os.fsync(descriptor)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def start(root: Path, name: str, kill_at: int | None) -> int | None:
    process = SERVER.Process(target=attempt, args=(root, name, kill_at))
    process.start()
    process.join(120)
    return process.exitcode


def last_records(root: Path, name: str) -> dict[tuple[str, int], dict[str, Any]]:
    """What counts: the last record of each (kind, samples_trained), without clocks."""
    records, _ = read_records(trial_dir(root, name) / "metrics.jsonl")
    clocks = {"wall_s", "seconds", "throughput", "engine", "trainer"}
    return {
        (record["kind"], record["samples_trained"]): {k: v for k, v in record.items() if k not in clocks}
        for record in records
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    root = tmp_path_factory.mktemp("undisturbed")
    assert start(root, "whole", None) == 0
    return root, int((root / "whole.steps").read_text())


@pytest.mark.parametrize("kill", range(NUM_KILLS))
def test_a_kill_anywhere_changes_no_record(undisturbed: tuple[Path, int], tmp_path: Path, kill: int) -> None:
    root, num_steps = undisturbed
    # One kill in each twentieth of the trial's life, at a seeded place within it.
    edges = np.linspace(1, num_steps + 1, NUM_KILLS + 1).astype(int)
    kill_at = int(np.random.default_rng(kill).integers(edges[kill], max(edges[kill + 1], edges[kill] + 1)))
    assert start(tmp_path, "killed", kill_at) == -signal.SIGKILL
    before, _ = read_records(trial_dir(tmp_path, "killed") / "metrics.jsonl")
    assert start(tmp_path, "killed", None) == 0
    assert last_records(tmp_path, "killed") == last_records(root, "whole")
    outcome = RunDir(trial_dir(tmp_path, "killed")).outcome()
    assert outcome is not None and outcome.status == "completed" and outcome.samples_trained == 160
    # No record that was whole is lost, and at most one checkpoint interval (48, reached at 48 and 96) is done again.
    after, bad = read_records(trial_dir(tmp_path, "killed") / "metrics.jsonl")
    assert bad == 0 and after[: len(before)] == before
    again = len(after) - len(last_records(root, "whole"))
    assert again <= 3 + 2 + 1  # three updates and at most two evaluations of them, and the start's evaluation


def test_a_finished_folder_has_whole_files_only(undisturbed: tuple[Path, int]) -> None:
    root, _ = undisturbed
    folder = trial_dir(root, "whole")
    assert not list(folder.rglob("*.tmp"))
    assert json.loads((folder / "outcome.json").read_text())["status"] == "completed"
