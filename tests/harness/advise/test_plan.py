"""Which arms an advice may run, at which rates and seeds, and what its branches are."""

from __future__ import annotations

from typing import Any

import pytest

from harness.advise.budget import Budget
from harness.advise.plan import Study, as_begun, branch_trial, extended, make_study, speed_trials
from harness.config import SweepConfig
from harness.errors import InputError
from harness.plan import Plan

SWEEP: dict[str, Any] = {
    "sweep": "small",
    "question": "which batch?",
    "batch": {"group_size": 4},
    "optimizer": {"lr": 1e-3},
    "evaluation": {"every_samples": 32, "num_prompts": 8},
    "budget_samples": 1024,
    "seeds": 3,
    "advise": {"most_seeds": 2, "reference_seeds": 2},
    "reference": {"batch.num_prompts": 4, "optimizer.lr_rule": "sqrt"},
    "arms": [
        {"batch.num_prompts": [4, 16]},
        {"batch.num_prompts": 16, "optimizer.lr_rule": "fixed"},
        {"batch.num_prompts": 8, "optimizer.lr": 2e-3},
    ],
}


def study(**changes: Any) -> Study:
    return make_study(SweepConfig.model_validate(SWEEP | changes))


def test_every_candidate_has_every_rate_and_two_more_at_either_end() -> None:
    found = study()
    assert found.plan.sweep == "small-advise" and found.plan.reference_arm == "P4-G4-sqrt-lr1e-3"
    assert {trial.seed for trial in found.plan.trials} == {1000, 1001}
    rates = {trial.config.optimizer.lr_ref for trial in found.plan.trials if trial.config.batch.num_prompts == 16}
    assert rates == {1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3}
    assert len(found.plan.trials) == 2 * 7 * 2  # arms, rates, seeds
    # The rule of the file holds at every rate: kappa = 64 / 16 = 4, twice the rate.
    assert all(
        t.config.optimizer.lr == 2 * t.config.optimizer.lr_ref for t in found.plan.trials if t.axes["num_prompts"] == 16
    )
    assert {trial.config.stop_past_target_frac for trial in found.plan.trials} == {0.5}
    assert Plan.from_json(found.plan.to_json()) == found.plan
    # Two candidates with three seeds of 1,024 samples.
    assert found.full_sweep_samples == 6144


def test_without_a_budget_a_share_of_the_whole_sweep_is_the_limit() -> None:
    """Of 2 arms x 30 seeds x 1,024 samples; of 3 seeds the share is less than 3 rates, 2 + 2 seeds of two arms."""
    assert study(seeds=30).budget == Budget(samples=0.35 * 2 * 30 * 1024)
    assert study().budget == Budget(samples=(3 + 2 + 2) * 1024)
    assert study(advise=SWEEP["advise"] | {"most_share": None}).budget == Budget()


def test_what_is_left_out_is_told() -> None:
    assert study().left_out == {
        "P16-G4-fixed-lr1e-3": "lr_rule fixed, where the reference has sqrt",
        "P8-G4-sqrt-lr2e-3": "a rate of its own, 0.002, where the reference has 0.001",
    }
    with pytest.raises(InputError, match="an advice needs two or more to choose from.*P16-G4-fixed: lr_rule fixed"):
        study(arms=[{"batch.num_prompts": 4}, {"batch.num_prompts": 16, "optimizer.lr_rule": "fixed"}])


REFERENCE: dict[str, Any] = {"batch.num_prompts": 4, "algorithm.name": "ppo"}


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"sampling.temperature": 0.7}, "sampling.temperature 0.7, where the reference has 1"),
        ({"algorithm.name": "ppo_ewma"}, "algorithm.name ppo_ewma, where the reference has ppo"),
        ({"algorithm.correction": "truncated"}, "algorithm.correction truncated, where the reference has none"),
        ({"algorithm.critic.lr": 5e-3}, "algorithm.critic.lr 0.005, where the reference has none"),
        ({"optimizer.betas": [[0.9, 0.95]]}, "optimizer.betas [0.9, 0.95], where the reference has [0.9, 0.999]"),
        ({"optimizer.clip_norm": 1.0}, "optimizer.clip_norm 1, where the reference has none"),
        ({"batch.mini_batch_size": 8}, "batch.mini_batch_size 8, where the reference has none"),
        ({"task.num_digits": 3}, "task.num_digits 3, where the reference has 6"),
        ({"model.warm_start.steps": 9}, "model.warm_start.steps 9, where the reference has 5"),
        ({"batch.micro_batch_size_per_gpu": 8, "batch.gen_batch": 16}, ""),
        ({"execution.mode": "streaming", "execution.streaming.order": "prompt", "statistics.every_samples": 0}, ""),
        ({"algorithm.critic.lr_rule": "sqrt"}, ""),  # what it is where nothing says so
    ],
)
def test_an_arm_that_learns_otherwise_is_no_candidate(own: dict[str, Any], why: str) -> None:
    arms = [REFERENCE, REFERENCE | {"batch.num_prompts": 8}, REFERENCE | {"batch.num_prompts": 16} | own]
    found = study(arms=arms, reference={"batch.num_prompts": 4}, model={"warm_start": {"steps": 5}})
    assert list(found.left_out.values()) == ([why] if why else [])
    batches = {trial.config.batch.num_prompts for trial in found.plan.trials}
    assert batches == ({4, 8} if why else {4, 8, 16})


def test_the_references_trials_keep_checkpoints_on_the_grid_and_the_others_two() -> None:
    for trial in study(budget_samples=2048).plan.trials:
        execution = trial.config.execution
        if trial.config.batch.num_prompts == 4:
            # 2,048 samples are 64 grid points: a checkpoint at every second one makes 32.
            assert (execution.checkpoint_every_samples, execution.checkpoints_kept) == (64, 33)
        else:
            assert (execution.checkpoint_every_samples, execution.checkpoints_kept) == (None, 2)
    spaced = study(execution={"checkpoint_every_samples": 100}).plan.trials[0].config.execution
    assert (spaced.checkpoint_every_samples, spaced.checkpoints_kept) == (100, 12)  # ceil(1024 / 100) + 1


def test_a_table_of_rates_is_taken_as_it_is() -> None:
    table = {"lr": 1e-3, "lr_rule": "table", "lr_table": {16: 1e-3, 64: 3e-3}}
    found = study(optimizer=table, reference={"batch.num_prompts": 4}, arms=[{"batch.num_prompts": [4, 16]}])
    assert [trial.arm for trial in found.plan.trials] == ["P4-G4-table", "P16-G4-table"] * 2
    assert [trial.config.optimizer.lr for trial in found.plan.trials[:2]] == [1e-3, 3e-3]


@pytest.mark.parametrize(
    ("advise", "told"),
    [
        ({"rates": [0.5, 2]}, "needs 1, the rate of the file"),
        ({"rates": [1, 1]}, "needs each factor once"),
        ({"most_seeds": 2}, "needs at least 3"),
    ],
)
def test_settings_that_make_no_sense_are_refused(advise: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        study(advise=advise)


BRANCH: dict[str, Any] = {
    "do": "branch", "arm": "P16-G4-sqrt-lr1e-3", "seed": 1000, "trial": "small-advise/trials/P4", "at_samples": 400,
    "samples": 256, "moments": "rescaled", "noise_scale": 50.0, "why": "?",
}  # fmt: skip


def test_a_branch_starts_at_a_checkpoint_and_is_a_trial_of_its_arm() -> None:
    trial = branch_trial(study(), BRANCH, 384)
    assert trial.arm == "P16-G4-sqrt-lr1e-3-b384" and trial.trial_id.startswith("P16-G4-sqrt-lr1e-3-b384-s1000-")
    config = trial.config
    assert config.branch is not None and (config.branch.at_samples, config.budget_samples) == (384, 384 + 256)
    assert (config.optimizer.lr, config.num_rollout_batches, config.stop_past_target_frac) == (2e-3, 4, None)
    assert (trial.axes["branch_of"], trial.axes["branch_at"]) == ("P16-G4-sqrt-lr1e-3", 384)
    plan = extended(study().plan, "small-advise-branches", "?", None, [trial])
    again = extended(study().plan, "small-advise-branches", "?", plan, [trial, branch_trial(study(), BRANCH, 64)])
    assert [t.arm for t in again.trials] == ["P16-G4-sqrt-lr1e-3-b384", "P16-G4-sqrt-lr1e-3-b64"]
    assert Plan.from_json(again.to_json()) == again


def test_a_branch_goes_on_as_it_was_begun_when_its_estimates_have_changed() -> None:
    begun = branch_trial(study(), BRANCH, 384)
    plan = extended(study().plan, "small-advise-branches", "?", None, [begun])
    later = branch_trial(study(), BRANCH | {"noise_scale": 70.0, "samples": 320}, 384)
    assert later.trial_id != begun.trial_id and as_begun(plan, later) is begun and as_begun(None, later) is later
    for other in ({"seed": 1001}, {"moments": "restored"}, {"trial": "small-advise/trials/P5"}):
        assert as_begun(plan, trial := branch_trial(study(), BRANCH | other, 384)) is trial


def test_a_branch_of_what_is_no_trial_is_refused() -> None:
    with pytest.raises(InputError, match="asks for P9 with seed 1000, which is not in the plan"):
        branch_trial(study(), BRANCH | {"arm": "P9"}, 64)
    with pytest.raises(ValueError, match="String should match pattern"):
        branch_trial(study(), BRANCH | {"trial": "../../trials/x"}, 64)


def test_speed_is_measured_with_fewer_places_in_flight() -> None:
    trials = speed_trials(study(), "P16-G4-sqrt-lr1e-3", [64, 16])
    assert [(t.arm, t.config.batch.gen_batch) for t in trials] == [
        ("P16-G4-sqrt-lr1e-3-gen64", 64), ("P16-G4-sqrt-lr1e-3-gen16", 16),
    ]  # fmt: skip
