"""Generation that goes on while the trial trains: every response accounted for, and its age known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import InputError
from harness.members import in_process
from harness.parts import Parts, build_parts
from harness.rollout.intake import Intake, LocalSource
from harness.streaming import open_intake
from harness.tracking.jsonl import read_records
from harness.trial import run_trial
from harness.types import RolloutGroup
from harness.update import Progress, generate, run_update
from tests.harness.small import LEARNS, planned_trial, trial_dir

# Long enough that some responses end well before others.
STREAMING: dict[str, Any] = {
    "execution__mode": "streaming",
    "batch__gen_batch": 32,
    "sampling__max_response_tokens": 24,
}


def opened(tmp_path: Path, **changes: Any) -> tuple[Parts, Progress, Intake]:
    parts, progress = build_parts(planned_trial(**STREAMING | changes).config, tmp_path, in_process), Progress()
    intake = open_intake(parts, progress)
    assert intake is not None
    return parts, progress, intake


def indices(groups: list[RolloutGroup]) -> list[int]:
    return [group.prompt.index for group in groups]


def tokens(groups: list[RolloutGroup]) -> dict[int, list[list[int]]]:
    return {group.prompt.index: [r.token_ids_T.tolist() for r in group.rollouts] for group in groups}


def test_under_fixed_weights_a_stream_draws_what_the_engine_draws_alone(tmp_path: Path) -> None:
    """Rows join and leave the batch in flight all the time; draws and log-probabilities know nothing of it."""
    parts, _, intake = opened(tmp_path)
    groups, dropped = intake.take(12, 0)
    assert dropped == 0 and len(set(indices(groups))) == 12
    alone = {group.prompt.index: group for group in generate(parts, 0, 40)}
    assert tokens(groups) == {index: tokens([alone[index]])[index] for index in indices(groups)}
    for group in groups:
        for mine, other in zip(group.rollouts, alone[group.prompt.index].rollouts, strict=True):
            np.testing.assert_allclose(mine.behaviour_logprobs_T, other.behaviour_logprobs_T, atol=1e-5)
            assert mine.truncated == other.truncated


def test_order_prompt_trains_on_the_prompts_in_their_order(tmp_path: Path) -> None:
    _, _, by_arrival = opened(tmp_path)
    _, _, by_prompt = opened(tmp_path, execution__streaming={"order": "prompt"})
    arrived = [index for _ in range(5) for index in indices(by_arrival.take(4, 0)[0])]
    assert [index for _ in range(5) for index in indices(by_prompt.take(4, 0)[0])] == list(range(20))
    assert arrived != sorted(arrived)  # short responses overtake
    assert by_arrival.metrics(generate(opened(tmp_path)[0], 0, 1), 0)["stream/overtaking_frac"] > 0


def test_responses_in_flight_go_on_under_new_weights_and_say_so(tmp_path: Path) -> None:
    parts, progress, intake = opened(tmp_path)
    ages = []
    for _ in range(4):
        update = run_update(parts, progress, intake)
        versions = [r.versions_T for group in update.trained.groups for r in group.rollouts]
        assert all((np.diff(v) >= 0).all() for v in versions)
        ages.append(progress.rollout_batches - 1 - np.concatenate(versions))
        metrics = update.metrics
        assert metrics["policy/staleness_updates_mean"] == pytest.approx(ages[-1].mean())
        assert metrics["policy/staleness_updates_max"] == ages[-1].max()
        # Every update trains on 16 samples.
        assert metrics["policy/staleness_samples_mean"] == pytest.approx(16 * ages[-1].mean())
        assert metrics["policy/staleness_samples_max"] == 16 * ages[-1].max()
    assert ages[0].max() == 0 and ages[1].max() == 1  # twice the batch is in flight


def test_what_is_restarted_is_sampled_by_one_version_only(tmp_path: Path) -> None:
    parts, progress, intake = opened(tmp_path, execution__streaming={"unfinished": "restart"})
    discarded = 0.0
    for _ in range(4):
        update = run_update(parts, progress, intake)
        assert all(len(set(r.versions_T.tolist())) == 1 for group in update.trained.groups for r in group.rollouts)
        discarded += intake.usage()["tokens_discarded"]
    assert discarded > 0


def test_groups_that_are_too_old_are_dropped_and_counted(tmp_path: Path) -> None:
    parts, progress, intake = opened(
        tmp_path,
        batch__gen_batch=64,
        execution__streaming={"max_staleness_updates": 1, "steps_while_training": 3},
    )
    dropped = 0
    for _ in range(6):
        update = run_update(parts, progress, intake)
        dropped += update.samples_dropped
        assert update.metrics["policy/staleness_updates_max"] <= 1  # 1 is allowed, not cut off a step early
        assert progress.samples_generated == progress.samples_trained + dropped + intake.samples_in_flight
    assert dropped > 0 and progress.samples_trained == 6 * 16 and progress.samples_dropped == dropped


def test_a_response_that_does_not_end_is_cut_at_its_limit_and_counted(tmp_path: Path) -> None:
    parts, progress, intake = opened(tmp_path, sampling__max_response_tokens=3)
    for _ in range(3):
        update = run_update(parts, progress, intake)
        rollouts = [rollout for group in update.trained.groups for rollout in group.rollouts]
        cut = [rollout for rollout in rollouts if rollout.truncated]
        assert 0 < len(cut) < 16 and all(len(rollout.token_ids_T) == 3 for rollout in cut)
        assert update.metrics["response/truncated_frac"] == len(cut) / 16
        assert progress.samples_generated == progress.samples_trained + intake.samples_in_flight


def test_the_queue_is_bounded_however_slow_the_trainer(tmp_path: Path) -> None:
    _, _, intake = opened(tmp_path, execution__streaming={"steps_while_training": 200})
    intake.take(4, 0)
    intake.while_training()
    in_flight = intake.samples_in_flight
    intake.while_training()
    # At most 32 groups with a response still in flight when a batch of 16 waits and nothing new begins.
    assert intake.samples_in_flight == in_flight <= 16 + 4 * 32
    assert isinstance(intake.source, LocalSource) and intake.source.stream.flight.size == 0


def test_a_trial_accounts_for_every_response_also_across_a_resume(tmp_path: Path) -> None:
    changes = STREAMING | {"budget_samples": 128, "execution__checkpoint_every_samples": 48}
    whole = trial_dir(tmp_path / "whole")
    list(run_trial(planned_trial(**changes), whole, tmp_path))
    again = trial_dir(tmp_path / "again")
    list(run_trial(planned_trial(**changes), again, tmp_path))
    records = read_records(whole / "metrics.jsonl")[0]
    # A logical clock: the same trial gives the same records.
    assert [r["metrics"] for r in records] == [r["metrics"] for r in read_records(again / "metrics.jsonl")[0]]

    cut = trial_dir(tmp_path / "cut")
    for record in run_trial(planned_trial(**changes), cut, tmp_path):
        if record.samples_trained == 80:
            break
    list(run_trial(planned_trial(**changes), cut, tmp_path))
    resumed = [r for r in read_records(cut / "metrics.jsonl")[0] if r["kind"] == "train"]
    assert [r["samples_trained"] for r in resumed] == [16, 32, 48, 64, 80, 64, 80, 96, 112, 128]
    for rows in ([r for r in records if r["kind"] == "train"], resumed[:3] + resumed[5:]):
        dropped = np.cumsum([row["samples_dropped"] for row in rows])
        for row, lost in zip(rows, dropped.tolist(), strict=True):
            assert row["samples_generated"] == row["samples_trained"] + lost + row["samples_in_flight"]
    assert resumed[5]["samples_dropped"] == resumed[2]["samples_in_flight"] > 0
    # Prompts whose responses were lost come again: none is left out for good.
    assert resumed[5]["samples_generated"] >= resumed[2]["samples_generated"] + resumed[2]["samples_in_flight"]


@pytest.mark.parametrize("gen_batch", [8, 34])
def test_less_in_flight_than_a_batch_or_broken_groups_are_refused(gen_batch: int) -> None:
    with pytest.raises(InputError, match=r"batch.gen_batch: .* needs whole groups of 4 and at least .* 16: (16|36)"):
        planned_trial(execution__mode="streaming", batch__gen_batch=gen_batch)


@pytest.mark.parametrize("correction", ["truncated", "decoupled"])
def test_a_correction_weighs_stale_tokens_and_leaves_fresh_ones_alone(correction: str, tmp_path: Path) -> None:
    changes = {"optimizer__lr": 0.01, "algorithm__correction": correction, "algorithm__correction_cap": 1.5}
    parts, progress, intake = opened(tmp_path, **LEARNS | changes)
    first = run_update(parts, progress, intake).metrics
    assert first["policy/correction_weight"] == pytest.approx(1.0, abs=1e-5)
    largest = [run_update(parts, progress, intake).metrics["policy/correction_weight_max"] for _ in range(5)]
    # At this rate some tokens become half again as likely in an update or two: only the cap holds them at 1.5.
    assert max(largest) == pytest.approx(1.5) if correction == "truncated" else max(largest) > 1.6


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_on_fresh_samples_a_correction_changes_nothing(name: str, tmp_path: Path) -> None:
    changes = LEARNS | {"batch__num_prompts": 16}
    algorithms = [{"name": name, "correction": correction} for correction in ("none", "truncated", "decoupled")]
    metrics = []
    for algorithm in algorithms:
        parts = build_parts(planned_trial(**changes, algorithm=algorithm).config, tmp_path)
        metrics.append(run_update(parts, Progress()).metrics)
    assert metrics[0]["grad/actor_norm"] > 0
    for other in metrics[1:]:
        assert other["grad/actor_norm"] == pytest.approx(metrics[0]["grad/actor_norm"], rel=1e-5)
        assert other["loss/actor"] == pytest.approx(metrics[0]["loss/actor"], abs=1e-6)
