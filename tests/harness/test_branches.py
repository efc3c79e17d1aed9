"""A branch goes on where its parent was, with the state that its batch asks for, and refuses what it cannot go on from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.config import BranchConfig, TrialConfig
from harness.courier import Courier, Home, Shelf
from harness.errors import InputError
from harness.jobs import Failed, Finished, Job, Piece
from harness.parts import build_parts
from harness.plan import Plan, PlannedTrial, Target
from harness.progress import Display
from harness.run_dir import RunDir
from harness.tables import console
from harness.tracking.jsonl import read_records
from harness.trial import run_trial
from harness.trial_queue import TrialQueue, parent_files
from tests.harness.faults import FUNCTIONS, InlinePool
from tests.harness.small import LEARNS, planned_trial, trial_dir

CLOCKS = {"wall_s", "seconds", "throughput", "engine", "trainer"}
# 16 responses a batch; a checkpoint and an evaluation every 32 samples, all of them kept.
PARENT: dict[str, Any] = {
    **LEARNS,
    "execution__checkpoint_every_samples": 32,
    "execution__checkpoints_kept": 9,
    "budget_samples": 160,
}
CRITIC = {"algorithm": {"name": "ppo", "critic": {"lr": 2e-3}}, "batch__group_size": 1, "batch__num_prompts": 16}
# Moving averages of its own, beside the policy.
MOVING = {"algorithm": {"name": "ppo_ewma"}}


def branch_of(changes: dict[str, Any], **branch: Any) -> PlannedTrial:
    told = {"trial": "small/trials/parent", "at_samples": 64, "moments": "restored"} | branch
    trial = planned_trial(**changes)
    config = TrialConfig.model_validate(trial.config.model_dump() | {"branch": told})
    return replace(trial, trial_id="branch", config=config)


def records(root: Path, name: str) -> list[dict[str, Any]]:
    found, _ = read_records(trial_dir(root, name) / "metrics.jsonl")
    last = {(record["kind"], record["samples_trained"]): record for record in found}
    return [{key: value for key, value in record.items() if key not in CLOCKS} for record in last.values()]


def run(trial: PlannedTrial, root: Path, name: str) -> None:
    list(run_trial(trial, trial_dir(root, name), root))


@pytest.mark.parametrize("changes", [{}, CRITIC, MOVING], ids=["grpo", "critic", "moving"])
def test_one_with_its_parents_batch_and_seed_is_its_parents_continuation(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    run(planned_trial(**PARENT | changes), tmp_path, "parent")
    run(branch_of(PARENT | changes), tmp_path, "branch")
    expected = [record for record in records(tmp_path, "parent") if record["samples_trained"] >= 64]
    # The parent's update that led to the checkpoint is its own.
    assert records(tmp_path, "branch") == [r for r in expected if (r["kind"], r["samples_trained"]) != ("train", 64)]
    outcome = RunDir(trial_dir(tmp_path, "branch")).outcome()
    assert outcome is not None and (outcome.status, outcome.samples_trained) == ("completed", 160)
    assert outcome.samples_generated == 160 and outcome.optimizer_steps == 10
    assert (
        "branches from small/trials/parent at 64 samples" in (trial_dir(tmp_path, "branch") / "trial.log").read_text()
    )


def test_one_with_a_larger_batch_goes_on_at_the_same_prompt_and_on_the_same_grid(tmp_path: Path) -> None:
    run(planned_trial(**PARENT), tmp_path, "parent")
    larger = PARENT | {"batch__num_prompts": 8, "budget_samples": 64 + 2 * 32}
    run(branch_of(larger), tmp_path, "branch")
    parent, branch = (
        {(r["kind"], r["samples_trained"]): r for r in records(tmp_path, n)} for n in ("parent", "branch")
    )
    assert list(branch) == [
        (kind, n) for n in (64, 96, 128) for kind in ("train", "eval") if (kind, n) != ("train", 64)
    ]
    assert branch["eval", 64]["metrics"] == parent["eval", 64]["metrics"]
    checkpoint = RunDir(trial_dir(tmp_path, "branch")).read_checkpoint(96)
    # 64 samples were 16 prompts of 4; its first batch takes the next 8 of them.
    assert checkpoint is not None and checkpoint["progress"]["prompts_used"] == 24
    assert [branch["train", n]["step"] for n in (96, 128)] == [5, 6]
    assert branch["train", 96]["optimizer_steps"] == 5 and branch["train", 128]["samples_generated"] == 128


def test_a_killed_one_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    run(planned_trial(**PARENT), tmp_path, "parent")
    trial = branch_of(PARENT)
    run(trial, tmp_path, "whole")
    for record in (attempt := run_trial(trial, trial_dir(tmp_path, "branch"), tmp_path)):
        if record.samples_trained == 112:
            attempt.close()
            break
    assert RunDir(trial_dir(tmp_path, "branch")).checkpoints_at() == [96]
    RunDir(trial_dir(tmp_path, "parent")).checkpoint_path(64).unlink()  # it is not needed any more
    run(trial, tmp_path, "branch")
    assert records(tmp_path, "branch") == records(tmp_path, "whole")
    log = (trial_dir(tmp_path, "branch") / "trial.log").read_text()
    assert "goes on from its checkpoint at 96 samples" in log


def test_one_killed_before_its_first_checkpoint_branches_again(tmp_path: Path) -> None:
    run(planned_trial(**PARENT), tmp_path, "parent")
    trial = branch_of(PARENT)
    run(trial, tmp_path, "whole")
    next(attempt := run_trial(trial, trial_dir(tmp_path, "branch"), tmp_path))
    attempt.close()
    run(trial, tmp_path, "branch")
    assert records(tmp_path, "branch") == records(tmp_path, "whole")


def test_rescaled_moments_of_policy_and_critic_are_those_of_the_formula(tmp_path: Path) -> None:
    run(planned_trial(**PARENT | CRITIC), tmp_path, "parent")
    larger = PARENT | CRITIC | {"batch__num_prompts": 64, "budget_samples": 128}
    trial = branch_of(larger, moments="rescaled", noise_scale=48.0)
    from harness.branches import begin_branch

    parts = build_parts(trial.config, tmp_path)
    assert trial.config.branch is not None
    progress = begin_branch(parts, trial.config.branch, tmp_path)
    assert (progress.samples_trained, progress.rollout_batches, progress.first_rollout_batch) == (64, 4, 4)
    before, after = RunDir(trial_dir(tmp_path, "parent")).read_checkpoint(64), parts.state()
    assert before is not None
    for name in ("trainer", "critic"):
        old, new = before[name]["optimizer"]["state"][0], after[name]["optimizer"]["state"][0]
        # k = 4, t = 4 -> 1: m' = m (1 - .9) / (1 - .9^4), v' = v (1 - .999) / (1 - .999^4) * (1 + 48/64) / (1 + 48/16)
        assert new["step"].item() == 1.0
        torch.testing.assert_close(new["exp_avg"], old["exp_avg"] * 0.1 / 0.3439)
        torch.testing.assert_close(
            new["exp_avg_sq"], old["exp_avg_sq"] * 0.001 / 0.003994003999 * 1.75 / 4.0, rtol=1e-5, atol=0
        )
        torch.testing.assert_close(after[name]["model"], before[name]["model"], rtol=0, atol=0)
    assert parts.state()["trainer"]["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)


def test_fresh_moments_are_none_and_restored_ones_take_the_branchs_own_settings(tmp_path: Path) -> None:
    from harness.branches import begin_branch

    run(planned_trial(**PARENT), tmp_path, "parent")
    own = PARENT | {"optimizer__betas": [0.8, 0.99]}
    for moments, left in (("fresh", 0), ("restored", 1)):
        trial = branch_of(own, moments=moments)
        parts = build_parts(trial.config, tmp_path)
        assert trial.config.branch is not None
        begin_branch(parts, trial.config.branch, tmp_path)
        optimizer = parts.state()["trainer"]["optimizer"]
        assert (len(optimizer["state"]) > 0) == bool(left)
        assert tuple(optimizer["param_groups"][0]["betas"]) == (0.8, 0.99)


@pytest.mark.parametrize(
    "trial",
    ["../small/trials/parent", "/tmp/trials/x", "small/trials/..", "small/trials/a/b", "small/../trials/x", ".x/trials/y",
     "small\n/trials/x", "small/trials/"],
)  # fmt: skip
def test_a_parent_lies_in_the_results_folder(trial: str) -> None:
    with pytest.raises(ValueError, match="String should match pattern"):
        BranchConfig(trial=trial, at_samples=64, moments="restored")


def test_what_it_cannot_go_on_from_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="small/trials/parent is no trial of this results folder; needs one that has run"
    ):
        run(branch_of(PARENT), tmp_path, "branch")
    run(planned_trial(**PARENT), tmp_path, "parent")
    with pytest.raises(InputError, match="no whole checkpoint there, needs one of 32, 64, 96, 128, 160"):
        run(branch_of(PARENT, at_samples=80), tmp_path, "branch")
    with pytest.raises(InputError, match="has another task; a branch goes on with that of its parent"):
        run(branch_of(PARENT | {"task__num_digits": 3}), tmp_path, "branch")
    with pytest.raises(InputError, match=r"branch\.noise_scale: unset; moments rescaled needs"):
        branch_of(PARENT, moments="rescaled")
    with pytest.raises(InputError, match="a branch at 64 samples with a rollout batch of 16 needs at least 80"):
        branch_of(PARENT | {"budget_samples": 64})
    path = RunDir(trial_dir(tmp_path, "parent")).checkpoint_path(64)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="no whole checkpoint there"):
        run(branch_of(PARENT), tmp_path, "branch")


class _Here:
    """The shelf of the driver, without a cluster between."""

    def __init__(self, results: Path) -> None:
        self.shelf = Shelf(results)

    def files(self, folder: str) -> dict[str, int]:
        return self.shelf.files(folder)

    def read(self, path: str, offset: int) -> bytes:
        return self.shelf.read(path, offset)


def test_a_worker_that_does_not_see_the_results_gets_the_checkpoint_it_starts_from_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(planned_trial(**PARENT), results, "parent")
    trial = branch_of(PARENT)
    run(trial, results, "whole")
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    courier = Courier(Home(results / "small", "0123456789abcdef-0"), _Here(results))
    # The starts that trials share are made before.
    (courier.root / "warm_starts").unlink()
    (courier.root / "warm_starts").symlink_to(results / "warm_starts")
    reads = parent_files(trial.config)
    assert reads == ("small/trials/parent/config.json", "small/trials/parent/checkpoint/000000000064.pt")
    arguments = (trial, trial_dir(results, "branch"), results)
    job = Job("branch", "harness.trial:run_trial", arguments, ("small/trials/branch",), (), reads)
    seen: list[str] = []
    pieces: list[Piece] = []
    for event in courier.execute(job):
        assert not isinstance(event, Failed), event.traceback
        pieces += [event] if isinstance(event, Piece) else []
        if not seen:
            seen = sorted(p.name for p in (courier.root / "small/trials/parent").rglob("*") if p.is_file())
    assert isinstance(event, Finished) and seen == ["000000000064.pt", "config.json"]
    told = b"".join(piece.content for piece in pieces if piece.path.endswith("metrics.jsonl"))
    (results / "sent").mkdir()
    trial_dir(results, "sent").mkdir(parents=True)
    (trial_dir(results, "sent") / "metrics.jsonl").write_bytes(told)
    assert records(results, "sent") == records(results, "whole")
    assert not list((courier.root / "small").rglob("*.pt"))


def test_the_queue_tells_workers_what_a_branch_reads(tmp_path: Path) -> None:
    jobs: list[Job] = []

    class Told(InlinePool):
        def start(self, job: Job) -> None:
            jobs.append(job)
            super().start(job)

    trials = [branch_of(PARENT), planned_trial()]
    queue = TrialQueue(trials, tmp_path / "small", FUNCTIONS.run_trial, 1)
    with Display(console(), "small", trials, 1) as display:
        queue.run(Told(1), display, print)
    read = ("small/trials/parent/config.json", "small/trials/parent/checkpoint/000000000064.pt")
    assert {job.key: job.reads for job in jobs} == {"branch": read, trials[1].trial_id: ()}


def test_a_plan_with_branches_is_read_back(tmp_path: Path) -> None:
    trial = branch_of(PARENT, moments="rescaled", noise_scale=100.0)
    plan = Plan("small", "?", trial.arm, Target("eval/score", 0.7), (trial,))
    assert Plan.from_json(plan.to_json()) == plan
    assert trial.config.num_rollout_batches == 6  # 160 - 64 = 96 samples of 16
