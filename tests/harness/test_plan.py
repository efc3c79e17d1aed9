"""From a sweep file to trials: arms, names, rates, seeds, and the plan on disk."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from harness.config import SweepConfig
from harness.errors import InputError
from harness.plan import Plan, PlannedTrial, check_extends, make_plan, select_trials

GOOD: dict[str, Any] = {
    "sweep": "demo",
    "question": "Does it work?",
    "task": {"name": "reverse_digits", "num_digits": 6},
    "batch": {"group_size": 8},
    "optimizer": {"lr": 3.0e-4},
    "evaluation": {"target": 0.6},
    "budget_samples": 2048,
    "seeds": 2,
    "reference": {"batch.num_prompts": 8},
    "arms": [{"batch.num_prompts": [8, 32]}, {"batch.num_prompts": 32, "optimizer.lr_rule": "fixed"}],
}


def plan_of(**changes: Any) -> Plan:
    return make_plan(SweepConfig.model_validate(GOOD | changes))


def refusal(**changes: Any) -> str:
    with pytest.raises(InputError) as caught:
        plan_of(**changes)
    return str(caught.value)


def arms_of(plan: Plan) -> dict[str, PlannedTrial]:
    return {trial.arm: trial for trial in plan.trials}


def test_arms_and_seeds_become_named_trials() -> None:
    plan = plan_of()
    assert [(trial.arm, trial.seed) for trial in plan.trials] == [
        (arm, seed) for seed in (0, 1) for arm in ("P8-G8-sqrt", "P32-G8-sqrt", "P32-G8-fixed")
    ]
    assert plan.reference_arm == "P8-G8-sqrt"
    assert (plan.target.metric, plan.target.value) == ("eval/score", 0.6)
    assert len({trial.trial_id for trial in plan.trials}) == 6
    first = plan.trials[0]
    prefix, _, digest = first.trial_id.rpartition("-")
    assert prefix == "P8-G8-sqrt-s0" and len(digest) == 8 and int(digest, 16) >= 0


def test_lists_of_one_entry_are_multiplied_out() -> None:
    plan = plan_of(
        arms=[{"batch.num_prompts": [8, 16], "batch.group_size": [4, 8]}],
        reference={"batch.num_prompts": 8, "batch.group_size": 4},
    )
    assert list(arms_of(plan)) == ["P8-G4-sqrt", "P8-G8-sqrt", "P16-G4-sqrt", "P16-G8-sqrt"]
    # B_ref = 8 x 4 = 32; P16-G8 has B = 128, kappa 4, twice the rate
    assert arms_of(plan)["P16-G8-sqrt"].config.optimizer.lr == pytest.approx(6e-4)


def test_rates_follow_the_batch_and_not_the_prompts() -> None:
    # the published pair: P=64, G=16 gets the same rate as P=128, G=8
    arms = [{"batch.num_prompts": 8}, {"batch.num_prompts": 64, "batch.group_size": 16}, {"batch.num_prompts": 128}]
    rates = {arm: trial.config.optimizer.lr for arm, trial in arms_of(plan_of(arms=arms)).items()}
    assert rates["P64-G16-sqrt"] == rates["P128-G8-sqrt"] == pytest.approx(3e-4 * 4)
    assert rates["P8-G8-sqrt"] == 3e-4


def test_the_rate_before_the_rule_is_kept() -> None:
    trial = arms_of(plan_of())["P32-G8-sqrt"]
    assert (trial.config.optimizer.lr_ref, trial.config.optimizer.lr) == (3e-4, pytest.approx(6e-4))
    assert arms_of(plan_of())["P32-G8-fixed"].config.optimizer.lr == 3e-4


def test_an_arm_may_have_its_own_reference_rate() -> None:
    arms = [{"batch.num_prompts": 8}, {"batch.num_prompts": 32, "optimizer.lr": [1.0e-4, 2.0e-4]}]
    by_arm = arms_of(plan_of(arms=arms))
    assert list(by_arm) == ["P8-G8-sqrt-lr3e-4", "P32-G8-sqrt-lr1e-4", "P32-G8-sqrt-lr2e-4"]
    scaled = by_arm["P32-G8-sqrt-lr2e-4"]
    assert (scaled.config.optimizer.lr_ref, scaled.config.optimizer.lr) == (2e-4, pytest.approx(4e-4))
    assert scaled.axes["lr_ref"] == 2e-4 and scaled.axes["lr"] == pytest.approx(4e-4)


def test_sde_rule_reaches_the_trial() -> None:
    optimizer = arms_of(plan_of(optimizer={"lr": 3e-4, "lr_rule": "adam_sde"}))["P32-G8-adam_sde"].config.optimizer
    assert optimizer.betas == pytest.approx((0.6, 0.996)) and optimizer.eps == pytest.approx(5e-9)
    message = refusal(optimizer={"lr": 3e-4, "lr_rule": "adam_sde"}, arms=[{"batch.num_prompts": [8, 128]}])
    assert message.startswith("arm P128-G8-adam_sde: optimizer.lr_rule: adam_sde at kappa = 16 needs")


def test_axes_are_flat_and_hold_what_varies() -> None:
    arms = [{"batch.num_prompts": 8}, {"batch.num_prompts": 32, "optimizer.betas": [[0.9, 0.95]], "model.seed": 1}]
    by_arm = arms_of(plan_of(arms=arms))
    assert list(by_arm) == ["P8-G8-sqrt-betas0.9_0.999-model_seed0", "P32-G8-sqrt-betas0.9_0.95-model_seed1"]
    assert dict(by_arm["P32-G8-sqrt-betas0.9_0.95-model_seed1"].axes) == {
        "algorithm": "grpo",
        "num_prompts": 32,
        "group_size": 8,
        "train_batch": 256,
        "lr": 6e-4,
        "lr_rule": "sqrt",
        "optimizer.betas": [0.9, 0.95],
        "model.seed": 1,
    }


def test_sections_may_be_written_nested_and_another_task_keeps_what_it_shares() -> None:
    arms = [{"batch.num_prompts": 8}, {"batch": {"num_prompts": 8}, "task.name": "digit_sums"}]
    plan = plan_of(arms=arms, reference={"task.name": "reverse_digits"})
    assert list(arms_of(plan)) == ["P8-G8-sqrt-reverse_digits", "P8-G8-sqrt-digit_sums"]
    task = arms_of(plan)["P8-G8-sqrt-digit_sums"].config.task
    assert (task.name, task.num_digits) == ("digit_sums", 6)


def test_arm_names_are_unique_and_safe_as_folders() -> None:
    # both folders are called `small`: a hash of the settings tells the arms apart
    plan = plan_of(
        arms=[{"batch.num_prompts": 8, "model.name": ["/a/small", "/b/small", "/c/la rge!"]}],
        reference={"model.name": "/a/small"},
    )
    names = list(arms_of(plan))
    assert len(names) == 3 and names[2] == "P8-G8-sqrt-la_rge_"
    assert names[0] != names[1] and all(name.startswith("P8-G8-sqrt-small-") for name in names[:2])
    assert all("/" not in name for name in names)


def test_rates_that_agree_in_six_digits_stay_apart() -> None:
    plan = plan_of(
        arms=[{"batch.num_prompts": 8, "optimizer.lr": [1.0000001e-4, 1.0000002e-4]}],
        reference={"optimizer.lr": 1.0000001e-4},
    )
    assert list(arms_of(plan)) == ["P8-G8-sqrt-lr1.0000001e-4", "P8-G8-sqrt-lr1.0000002e-4"]


def test_the_id_depends_on_the_whole_configuration() -> None:
    one, same, other = plan_of(), plan_of(), plan_of(budget_samples=4096)
    assert [t.trial_id for t in one.trials] == [t.trial_id for t in same.trials]
    assert not {t.trial_id for t in one.trials} & {t.trial_id for t in other.trials}


def test_the_id_does_not_depend_on_who_runs_the_trial_or_who_watches() -> None:
    changed = plan_of(execution={"workers": 1, "max_attempts": 5}, tracking={"tags": ["again"]}, timing={"rounds": 2})
    assert [t.trial_id for t in changed.trials] == [t.trial_id for t in plan_of().trials]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": {"batch.num_prompts": 9}}, "reference.batch.num_prompts: no arm has 9; the arms have 8, 32"),
        ({"reference": {"batch.num_prompt": 8}}, "reference.batch.num_prompt: unknown; did you mean batch.num_prompts?"),
        (
            {"reference": {"batch.num_prompts": 32}},
            "reference: {'batch.num_prompts': 32} has to match exactly one arm, but matches P32-G8-sqrt, P32-G8-fixed; change or add a dotted name, for instance optimizer.lr_rule",
        ),
        (
            {"reference": {"batch.num_prompts": 8, "optimizer.lr_rule": "fixed"}},
            "reference: {'batch.num_prompts': 8, 'optimizer.lr_rule': 'fixed'} has to match exactly one arm, but matches none; change or add a dotted name, for instance optimizer.lr_rule",
        ),
        (
            {"arms": [{"batch.num_prompts": [8, 16]}, {"batch.num_prompts": [16, 32]}]},
            "arms[1]: {batch.num_prompts: 16} is the same arm as one of arms[0]; each arm may occur once",
        ),
        ({"arms": [{"batch.num_prompt": 8}]}, "arms[0]: batch.num_prompt: unknown; did you mean batch.num_prompts?"),
        ({"arms": [{"batch.num_prompts": ["8"]}]}, "arms[0]: batch.num_prompts: '8', which is text; needs a whole number; write 8 without quotes"),
        ({"arms": [{"batch.num_prompts": []}]}, "arms[0].batch.num_prompts: an empty list makes no arm; needs at least one value"),
        ({"arms": [{"batch.num_prompts": 8, "batch.num_prompts.x": 8}]}, "arms[0]: batch.num_prompts.x: num_prompts holds no names"),
        (
            {"arms": [{"batch.num_prompts": 8, "optimizer.betas": [0.9, 0.99]}]},
            "arms[0]: optimizer.betas: 0.9; needs a list (lists in an arm are multiplied out: write one list value nested, optimizer.betas: [[...]])",
        ),
        ({"arms": [{"batch.num_prompts": 8}, {"batch.num_prompts": 16, "evaluation.target": 0.5}]}, "arms[1].evaluation.target: all arms share one evaluation grid and target; set it for the sweep"),
        ({"arms": [{"batch.num_prompts": 8, "seed": 3}]}, "arms[0]: seed: unknown; did you mean model.seed?"),
        (
            {"arms": [{"batch.num_prompts": [8, 512]}]},
            "arm P512-G8-sqrt: budget_samples: 2048 is below one rollout batch of 4096 responses (512 x 8); needs at least 4096",
        ),
        (
            {"arms": [{"batch.num_prompts": 8}, {"batch.num_prompts": 64, "batch.group_size": 1}]},
            "arm P64-G1-sqrt: batch.group_size: 1 leaves grpo no group to compare with; needs at least 2",
        ),
        (
            {"batch": {"group_size": 8, "mini_batch_size": 64}, "arms": [{"batch.num_prompts": [8, 12]}]},
            "arm P12-G8-sqrt: batch.mini_batch_size: 64 does not divide the rank's 96 responses (96 % 64 = 32); the nearest that do: 48 or 96",
        ),
    ],
)  # fmt: skip
def test_plans_that_cannot_be_compared_or_run(changes: dict[str, Any], message: str) -> None:
    assert refusal(**changes) == message


def test_the_last_batch_may_pass_the_budget_and_says_so() -> None:
    # 1000 samples in batches of 256: 4 batches, 1024 samples
    config = arms_of(plan_of(budget_samples=1000))["P32-G8-sqrt"].config
    assert config.num_rollout_batches * config.batch.train_batch == 1024


def test_plan_json_keeps_the_contract_and_reads_back() -> None:
    plan = plan_of()
    data = json.loads(plan.to_json())
    assert list(data) == ["format", "sweep", "question", "reference_arm", "target", "trials"]
    assert data["format"] == 1 and data["target"] == {"metric": "eval/score", "value": 0.6}
    trial = data["trials"][1]
    assert list(trial) == ["trial_id", "arm", "seed", "axes", "config"]
    assert trial["axes"] == {
        "algorithm": "grpo",
        "num_prompts": 32,
        "group_size": 8,
        "train_batch": 256,
        "lr": 6e-4,
        "lr_rule": "sqrt",
    }
    assert trial["config"]["optimizer"]["lr_ref"] == 3e-4 and trial["config"]["seed"] == 0
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plan.json: not valid JSON"),
        ('{"format": 1, "sweep": "de', "plan.json: not valid JSON"),
        ("[]", "plan.json: format None; this version reads format 1"),
        ('{"format": 2}', "plan.json: format 2; this version reads format 1"),
        ('{"format": 1, "sweep": "demo"}', "plan.json: a field is missing or wrong ('reference_arm')"),
    ],
)
def test_unreadable_plans(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Plan.from_json(text)
    assert str(caught.value).startswith(message)


def test_a_plan_with_a_wrong_configuration() -> None:
    text = plan_of().to_json().replace('"num_digits": 6', '"num_digits": "six"', 1)
    with pytest.raises(InputError) as caught:
        Plan.from_json(text)
    assert str(caught.value) == "plan.json: task.num_digits: 'six', which is text; needs a whole number"


def test_choosing_arms_and_seeds() -> None:
    plan = plan_of()
    assert select_trials(plan) == list(plan.trials)
    chosen = select_trials(plan, only=["P32-G8-fixed", "P8-G8-sqrt"], seeds=[1])
    assert [(t.arm, t.seed) for t in chosen] == [("P8-G8-sqrt", 1), ("P32-G8-fixed", 1)]
    with pytest.raises(InputError) as caught:
        select_trials(plan, only=["P32-G8-fixd"])
    assert str(caught.value) == "--only P32-G8-fixd: no such arm; did you mean P32-G8-fixed?"
    with pytest.raises(InputError) as caught:
        select_trials(plan, seeds=[7])
    assert str(caught.value) == (
        "--seeds 7: not in the plan, whose seeds are 0, 1; the field seeds adds some, for instance --set seeds=[0, 1, 7]"
    )


def test_a_plan_may_be_extended() -> None:
    old = plan_of()
    more_seeds = plan_of(seeds=5)
    more_arms = plan_of(arms=[*GOOD["arms"], {"batch.num_prompts": 64}])
    started = {trial.trial_id for trial in old.trials}
    check_extends(old, more_seeds, started, "results/demo")
    check_extends(old, more_arms, started, "results/demo")
    check_extends(old, plan_of(budget_samples=4096), set(), "results/demo")  # nothing has begun: nothing is lost
    check_extends(None, old, set(), "results/demo")


def test_another_plan_is_refused_with_the_difference_and_a_way_on() -> None:
    old, new = plan_of(), plan_of(optimizer={"lr": 4e-4})
    started = {old.trials[0].trial_id, old.trials[1].trial_id}
    with pytest.raises(InputError) as caught:
        check_extends(old, new, started, "results/demo")
    assert str(caught.value) == (
        "results/demo was made by another plan: 2 of its trials with records are not in this one; P8-G8-sqrt with seed 0 "
        "differs in optimizer.lr 0.0003 -> 0.0004, optimizer.lr_ref 0.0003 -> 0.0004. To keep both, give the sweep another "
        "name (--set sweep=NAME) or another folder (--results DIR); to go on with the old one, undo the change; to discard "
        "it, delete results/demo"
    )
    with pytest.raises(InputError, match="the first is P32-G8-fixed with seed 0"):
        check_extends(old, replace(old, trials=old.trials[:2]), {old.trials[2].trial_id}, "results/demo")
    with pytest.raises(InputError, match="the first is P9-G9-x"):
        check_extends(None, old, {"P9-G9-x"}, "results/demo")


def test_kappa_is_the_ratio_of_batches() -> None:
    plan = plan_of(arms=[{"batch.num_prompts": [8, 24]}])
    assert arms_of(plan)["P24-G8-sqrt"].config.optimizer.lr == pytest.approx(3e-4 * math.sqrt(3), rel=1e-15)
