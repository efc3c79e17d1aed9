"""One rollout batch: what is generated, what is trained on, how many steps it takes and how far it moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.parts import Parts, build_parts
from harness.steps import shuffled
from harness.tasks.digits import ReverseDigits
from harness.training.batch import make_train_batch, token_batch
from harness.trial import run_trial
from harness.types import Prompt
from harness.update import Progress, Update, run_update
from tests.harness.small import planned_trial, ragged_groups, trial_dir

ONE_RESPONSE = {"algorithm": {"name": "reinforce"}, "batch__num_prompts": 16, "batch__group_size": 1}


class Scripted(ReverseDigits):
    """Three of every eight prompts give all their responses the same reward; the others 1, 0, 1, 0, ..."""

    dead = 3

    def __init__(self, num_digits: int) -> None:
        super().__init__(num_digits)
        self.calls = 0

    def score(self, prompt: Prompt, response: str) -> float:
        self.calls += 1
        return 0.5 if prompt.index % 8 < self.dead else float(self.calls % 2)


class Dead(Scripted):
    """No prompt tells one response from another."""

    dead = 8


def update_of(task: type[Scripted], patch: pytest.MonkeyPatch, **settings: Any) -> tuple[Update, Progress]:
    patch.setattr("harness.parts.make_task", lambda config: task(config.num_digits))
    parts, progress = build_parts(planned_trial(**settings).config, Path()), Progress()
    return run_update(parts, progress), progress


def dapo(refill_rounds: int) -> dict[str, Any]:
    algorithm = {"name": "dapo", "refill_rounds": refill_rounds}
    return {"algorithm": algorithm, "batch__num_prompts": 64, "batch__group_size": 8, "budget_samples": 512}


def test_dropped_groups_count_as_generated_only(monkeypatch: pytest.MonkeyPatch) -> None:
    # 64 groups of 8, of which 64 * 3/8 = 24 are dead: 40 * 8 = 320 are trained on.
    update, progress = update_of(Scripted, monkeypatch, **dapo(refill_rounds=0))
    assert (progress.samples_trained, progress.samples_generated) == (320, 512)
    assert (update.samples_trained, update.samples_dropped, progress.prompts_used) == (320, 192, 64)
    assert update.metrics["reward/zero_variance_frac"] == 24 / 64
    assert len(update.trained.groups) == 40
    assert update.tokens_trained < update.tokens_generated


def test_dropped_groups_are_replaced_from_the_prompt_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of prompts 64..87 9 are dead, of 88..96 4 (88, 89, 90, 96), of 97..100 2 (97, 98); 101 and 102 are live.
    update, progress = update_of(Scripted, monkeypatch, **dapo(refill_rounds=4))
    assert progress.prompts_used == 64 + 24 + 9 + 4 + 2
    assert (progress.samples_trained, progress.samples_generated) == (512, 103 * 8)
    assert update.samples_dropped == 39 * 8
    assert [group.prompt.index for group in update.trained.groups] == [i for i in range(103) if i % 8 >= 3]
    # The rounds are bounded: after one 9 groups are still missing.
    _, progress = update_of(Scripted, monkeypatch, **dapo(refill_rounds=1))
    assert (progress.samples_trained, progress.samples_generated) == ((64 - 9) * 8, 88 * 8)


def test_without_a_live_group_the_batch_is_trained_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    update, progress = update_of(Dead, monkeypatch, **dapo(refill_rounds=1))
    assert (progress.samples_trained, progress.samples_generated, progress.optimizer_steps) == (512, 1024, 1)
    assert update.metrics["grad/actor_norm"] == 0 and update.metrics["reward/zero_variance_frac"] == 1


def test_greedy_responses_are_generated_and_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"algorithm": {"name": "remax"}, "batch__num_prompts": 4, "batch__group_size": 3}
    update, progress = update_of(Scripted, monkeypatch, **settings)
    assert (progress.samples_trained, progress.samples_generated, update.samples_dropped) == (12, 16, 0)
    # Prompts 0 to 2 give .5 to all; prompt 3 gives the calls 13 to 16 the rewards 1, 0, 1 and, greedy, 0.
    assert update.metrics["reward/mean"] == pytest.approx((9 * 0.5 + 2) / 12)
    assert update.metrics["reward/greedy_mean"] == pytest.approx(1.5 / 4)
    assert update.tokens_trained < update.tokens_generated
    # What is sampled does not depend on the greedy response beside it.
    plain, _ = update_of(Scripted, monkeypatch, **settings | {"algorithm": {"name": "rloo"}})
    one, other = (
        [rollout.token_ids_T.tolist() for group in found.trained.sampled for rollout in group.rollouts]
        for found in (update, plain)
    )
    assert one == other


@pytest.mark.parametrize("passes", [1, 2])
def test_mini_batches_and_passes_are_counted(tmp_path: Path, passes: int) -> None:
    # 16 responses, mini 4, micro 2: 4 optimizer steps and 8 backward passes in each pass over the same 16 samples.
    settings = {"batch__mini_batch_size": 4, "batch__micro_batch_size_per_gpu": 2, "budget_samples": 32}
    algorithm = {"algorithm": {"name": "reinforce", "passes": passes}}
    records = list(run_trial(planned_trial(**ONE_RESPONSE | algorithm, **settings), trial_dir(tmp_path), tmp_path))
    train = [record for record in records if record.kind == "train"]
    assert [record.optimizer_steps for record in train] == [4 * passes, 8 * passes]
    assert [record.extra["backward_passes"] for record in train] == [8 * passes, 8 * passes]
    assert [record.samples_trained for record in train] == [16, 32]
    assert [record.samples_generated for record in train] == [16, 32]


def test_the_trust_region_is_around_the_policy_that_sampled_in_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def clipped(passes: int) -> Update:
        settings = ONE_RESPONSE | {"algorithm": {"name": "reinforce", "passes": passes}, "optimizer__lr": 0.03}
        return update_of(Scripted, monkeypatch, **settings)[0]

    # One step on fresh data: the ratio is 1. Later ones see a policy that has moved away from the one that sampled.
    assert clipped(1).metrics["policy/clip_frac"] == 0
    assert clipped(2).metrics["policy/clip_frac"] > 0.1
    assert clipped(2).metrics["policy/logprob_gap_max"] < 1e-4  # the gap to the engine is that before the first step


def weights_of(parts: Parts) -> torch.Tensor:
    return torch.cat([weight.detach().flatten().clone() for _, weight in parts.trainer.weights()])


def test_how_far_a_rollout_batch_moved_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.parts.make_task", lambda config: Scripted(config.num_digits))
    algorithm = {"name": "reinforce", "measure_move": True, "passes": 3}
    parts = build_parts(planned_trial(**ONE_RESPONSE | {"algorithm": algorithm}).config, Path())
    before = weights_of(parts)
    update = run_update(parts, Progress())
    assert update.metrics["policy/update_norm"] == pytest.approx(float((weights_of(parts) - before).norm()), rel=1e-5)
    tokens = token_batch(update.trained.sampled)
    now = np.concatenate(parts.trainer.logprobs(tokens))
    assert update.metrics["policy/kl_from_behaviour"] == pytest.approx(
        float((tokens.behaviour_logprobs_N - now).mean()), rel=1e-4
    )
    unasked, _ = update_of(Scripted, monkeypatch, **ONE_RESPONSE)
    assert not {"policy/update_norm", "policy/kl_from_behaviour"} & set(unasked.metrics)


def test_a_shuffled_pass_has_the_same_groups_in_another_order_with_the_weights_of_its_steps() -> None:
    parts = build_parts(planned_trial(algorithm={"name": "rloo", "shuffle_passes": True}).config, Path())
    tokens = token_batch(ragged_groups())
    batch = make_train_batch(tokens, np.arange(len(tokens.token_ids_N)), parts.algorithm.loss_weights, 4)
    orders = []
    for number in range(4):
        mixed = shuffled(parts, batch, 4, (0, number))
        orders.append(tuple(mixed.prompt_of_response_S[::4].tolist()))
        # Groups stay whole and in order within; each step of four responses has weights that sum to 1.
        assert mixed.prompt_of_response_S.tolist() == np.repeat(orders[-1], 4).tolist()
        sums = np.add.reduceat(
            mixed.loss_weights_N, np.cumsum(mixed.lengths_S)[3::4] - mixed.lengths_S.reshape(3, 4).sum(1)
        )
        np.testing.assert_allclose(sums, 1)
        for prompt in range(3):
            tokens_of = np.repeat(mixed.prompt_of_response_S, mixed.lengths_S) == prompt
            there = np.repeat(batch.prompt_of_response_S, batch.lengths_S) == prompt
            assert mixed.token_ids_N[tokens_of].tolist() == batch.token_ids_N[there].tolist()
            assert mixed.advantages_N[tokens_of].tolist() == batch.advantages_N[there].tolist()
    assert len(set(orders)) > 1


def test_passes_shuffle_nothing_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def metrics(**algorithm: Any) -> dict[str, float]:
        settings = ONE_RESPONSE | {"algorithm": {"name": "reinforce", "passes": 2, **algorithm}}
        return update_of(Scripted, monkeypatch, **settings, batch__mini_batch_size=4)[0].metrics

    assert metrics() == metrics()
    assert metrics(shuffle_passes=True) == metrics(shuffle_passes=True) != metrics()


@pytest.mark.parametrize("name", ["reinforce", "ppo", "ppo_ewma", "dapo"])
def test_a_resumed_trial_remembers_what_its_algorithm_remembers(tmp_path: Path, name: str) -> None:
    algorithm = {"name": name, "passes": 2, "shuffle_passes": True, "measure_move": True}
    trial = planned_trial(
        algorithm=algorithm, budget_samples=96, execution__checkpoint_every_samples=32, optimizer__lr=1e-2
    )
    whole = list(run_trial(trial, trial_dir(tmp_path, "whole"), tmp_path))
    interrupted = run_trial(trial, trial_dir(tmp_path, "killed"), tmp_path)
    for record in interrupted:
        if record.samples_trained >= 64:
            break
    interrupted.close()  # type: ignore[attr-defined]
    again = list(run_trial(trial, trial_dir(tmp_path, "killed"), tmp_path))
    assert again[0].samples_trained > 0
    assert [record.metrics for record in again] == [record.metrics for record in whole[-len(again) :]]
    assert [record.samples_generated for record in again] == [r.samples_generated for r in whole[-len(again) :]]
