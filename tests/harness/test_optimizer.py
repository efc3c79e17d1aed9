"""What the rules make of a sweep's optimizer, and where it is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.algorithm.config import CriticConfig
from harness.config import OptimizerConfig, SweepConfig
from harness.errors import InputError
from harness.explain import explain
from harness.optimizer import resolve_critic, resolve_optimizer
from harness.parts import build_parts
from harness.plan import Plan, make_plan
from harness.training.critic import TorchCritic
from harness.training.torch import TorchTrainer


def sweep(optimizer: dict[str, Any], **changes: Any) -> SweepConfig:
    base: dict[str, Any] = {
        "sweep": "demo",
        "question": "Does it work?",
        "optimizer": {"lr": 3.0e-4} | optimizer,
        "budget_samples": 2048,
        "seeds": 1,
        "reference": {"batch.num_prompts": 8},
        "arms": [{"batch.num_prompts": [8, 32]}],
    }
    return SweepConfig.model_validate(base | changes)


def planned(optimizer: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The optimizer of each arm as plan.json holds it."""
    text = make_plan(sweep(optimizer, **changes)).to_json()
    assert Plan.from_json(text).to_json() == text
    return {trial["arm"]: trial["config"]["optimizer"] for trial in json.loads(text)["trials"]}


def test_every_number_is_resolved_and_its_reference_kept_beside_it() -> None:
    rules = {"lr_rule": "adam_sde", "weight_decay_rule": "sqrt", "clip_norm_rule": "inverse_sqrt"}
    given = {"weight_decay": 0.1, "clip_norm": 1.0, "warmup_samples": 640, "warmup_rule": "linear"}
    # kappa = 256/64 = 4
    applied = planned(rules | given)["P32-G8-adam_sde"]
    assert applied["lr"] == pytest.approx(6e-4) and applied["lr_ref"] == 3e-4
    assert applied["betas"] == pytest.approx([0.6, 0.996]) and applied["betas_ref"] == [0.9, 0.999]
    assert applied["eps"] == pytest.approx(5e-9) and applied["eps_ref"] == 1e-8
    assert applied["weight_decay"] == pytest.approx(0.2) and applied["weight_decay_ref"] == 0.1
    assert (applied["clip_norm"], applied["clip_norm_ref"]) == (0.5, 1.0)
    assert (applied["warmup_samples"], applied["warmup_samples_ref"]) == (2560, 640)


def test_what_a_rule_leaves_as_it_was_has_no_second_number() -> None:
    arms = planned({"weight_decay": 0.1, "clip_norm": 1.0, "warmup_samples": 640})
    for arm in ("P8-G8-sqrt", "P32-G8-sqrt"):
        assert arms[arm]["lr_ref"] == 3e-4
        assert [name for name, value in arms[arm].items() if name.endswith("_ref") and value is not None] == ["lr_ref"]


def test_resolving_twice_changes_nothing() -> None:
    # a batch is its own reference: kappa 1
    given = OptimizerConfig(lr=3e-4, lr_rule="adam_sde", weight_decay_rule="sqrt", weight_decay=0.1)
    resolved = resolve_optimizer(given, 64, 64)
    assert {name: resolved[name] for name in type(given).model_fields} == given.model_dump()
    assert resolved.keys() - given.model_dump().keys() == {"lr_ref"}


def test_a_table_of_rates() -> None:
    table = {64: 3.0e-4, 256: 5.0e-4}
    arms = planned({"lr_rule": "table", "lr_table": table})
    assert [arm["lr"] for arm in arms.values()] == [3e-4, 5e-4]
    # JSON has only text as keys
    assert arms["P32-G8-table"]["lr_table"] == {"64": 3e-4, "256": 5e-4}
    config = Plan.from_json(make_plan(sweep({"lr_rule": "table", "lr_table": table})).to_json()).trials[0].config
    assert config.optimizer.lr_table == table


def test_an_arm_may_bring_its_own_table() -> None:
    tables = [{"optimizer.lr_rule": "table", "optimizer.lr_table": {256: rate}} for rate in (4.0e-4, 5.0e-4)]
    arms = planned({}, arms=[{"batch.num_prompts": 8}, *({"batch.num_prompts": 32} | table for table in tables)])
    assert [arm["lr"] for arm in arms.values()] == [3e-4, 4e-4, 5e-4]
    first, *others = arms
    assert first == "P8-G8-sqrt" and all(name.startswith("P32-G8-table-") for name in others)


def test_surge_reaches_the_trial() -> None:
    # sqrt(4) x (256 + 64) / (256 + 256) = 1.25
    arms = planned({"lr_rule": "surge", "noise_scale": 256.0})
    assert arms["P32-G8-surge"]["lr"] == pytest.approx(3.75e-4)


def test_the_critic_has_a_rate_and_a_rule_of_its_own() -> None:
    actor = OptimizerConfig(lr=3e-4, lr_rule="sqrt", clip_norm=1.0, clip_norm_rule="inverse_sqrt")
    assert resolve_critic(actor, None, 256, 64) is None
    assert resolve_critic(actor, CriticConfig(), 256, 64) == resolve_optimizer(actor, 256, 64)
    own = resolve_critic(actor, CriticConfig(lr=8e-4, lr_rule="linear"), 256, 64)
    # kappa 4: its own rate times 4; the clip norm is the actor's, halved
    assert own is not None
    assert (own["lr"], own["lr_ref"], own["lr_rule"]) == (pytest.approx(3.2e-3), 8e-4, "linear")
    assert (own["clip_norm"], own["clip_norm_ref"]) == (0.5, 1.0)


def test_actor_and_critic_follow_the_batch_apart() -> None:
    # kappa 256/64 = 4: both 2 x 3e-4, only the actor, only the critic
    arms = [{"batch.num_prompts": 64, "optimizer.lr_rule": "sqrt"}]
    arms += [
        {"batch.num_prompts": 256, "optimizer.lr_rule": actor, "algorithm.critic.lr_rule": critic}
        for actor, critic in (("sqrt", "sqrt"), ("sqrt", "fixed"), ("fixed", "sqrt"))
    ]
    plan = make_plan(
        sweep({}, algorithm={"name": "ppo"}, batch={"group_size": 1}, arms=arms, reference={"batch.num_prompts": 64})
    )
    rates = {t.arm: (t.axes["lr"], t.axes["critic_lr"], t.axes["critic_lr_rule"]) for t in plan.trials}
    assert rates == {
        "P64-G1-sqrt-critic_lr_rule_unset": (3e-4, 3e-4, "sqrt"),
        "P256-G1-sqrt-critic_lr_rule_sqrt": (6e-4, 6e-4, "sqrt"),
        "P256-G1-sqrt-critic_lr_rule_fixed": (6e-4, 3e-4, "fixed"),
        "P256-G1-fixed-critic_lr_rule_sqrt": (3e-4, 6e-4, "sqrt"),
    }
    assert [trial.config.critic_optimizer is not None for trial in plan.trials] == [True] * 4


def test_the_resolved_numbers_are_those_of_the_torch_optimizers(tmp_path: Path) -> None:
    # kappa 4: .9^4 = .6561, .999^4 = .996006, 1e-8/2, .1 x 2; the critic's own rule leaves its betas
    rules = {"name": "adamw", "lr_rule": "adam_sde_power", "weight_decay": 0.1, "weight_decay_rule": "sqrt"}
    plan = make_plan(
        sweep(
            rules,
            task={"name": "reverse_digits", "num_digits": 3},
            algorithm={"name": "ppo", "critic": {"lr_rule": "fixed"}},
            evaluation={"num_prompts": 4},
        )
    )
    parts = build_parts(next(t.config for t in plan.trials if t.axes["train_batch"] == 256), tmp_path)
    assert isinstance(parts.trainer, TorchTrainer) and isinstance(parts.critic, TorchCritic)
    actor, critic = parts.trainer.optimizer.param_groups[0], parts.critic.optimizer.param_groups[0]
    assert (actor["lr"], actor["eps"], actor["weight_decay"]) == pytest.approx((6e-4, 5e-9, 0.2))
    assert actor["betas"] == pytest.approx((0.6561, 0.996006), rel=1e-6)
    assert (critic["lr"], critic["eps"], critic["betas"]) == (3e-4, 1e-8, (0.9, 0.999))
    assert critic["weight_decay"] == pytest.approx(0.2)


def test_an_error_in_the_critics_rule_names_the_critic() -> None:
    with pytest.raises(InputError) as caught:
        resolve_critic(OptimizerConfig(lr=3e-4), CriticConfig(lr_rule="adam_sde"), 640, 64)
    assert str(caught.value).startswith("algorithm.critic.lr_rule: adam_sde at kappa = 10 needs")
    actor = OptimizerConfig(lr=3e-4, lr_rule="table", lr_table={64: 3e-4, 256: 5e-4})
    with pytest.raises(InputError) as caught:
        resolve_critic(actor, CriticConfig(lr=8e-4), 256, 64)
    assert str(caught.value) == (
        "algorithm.critic.lr_table: 0.0003 at the reference batch 64, where algorithm.critic.lr is 0.0008; the two have to agree"
    )


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"lr_rule": "surge"}, "arm P8-G8-surge: optimizer.noise_scale: unset; lr_rule surge needs the batch at which the rate peaks, for instance 1000, the noise scale of a report"),
        ({"lr_rule": "table"}, "arm P8-G8-table: optimizer.lr_table: unset; lr_rule table needs a rate for every train batch, for instance {64: 0.0003}"),
        ({"lr_rule": "table", "lr_table": {64: 3e-4}}, "arm P32-G8-table: optimizer.lr_table: no rate for the train batch 256; it has rates for 64"),
        ({"lr_rule": "table", "lr_table": {64: 2e-4}}, "arm P8-G8-table: optimizer.lr_table: 0.0002 at the reference batch 64, where optimizer.lr is 0.0003; the two have to agree"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_resolved(optimizer: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(optimizer)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({64: "2e-4"}, "optimizer.lr_table[64]: '2e-4', which is text; needs a number; write 2.0e-4 (YAML wants a dot and a sign in a number with e)"),
        ({64: 0.0}, "optimizer.lr_table[64]: 0.0; needs a value above 0"),
        ({"many": 1e-4}, "optimizer.lr_table.many, the key: 'many', which is text; needs a whole number"),
        ({64.5: 1e-4}, "optimizer.lr_table.64.5, the key: 64.5; needs a whole number"),
        ({0: 1e-4}, "optimizer.lr_table[0], the key: 0; needs a value of at least 1"),
        ([64], "optimizer.lr_table: a list; needs a mapping"),
    ],
)  # fmt: skip
def test_tables_that_are_none(table: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        sweep({"lr_rule": "table", "lr_table": table})
    assert explain(caught.value, SweepConfig) == message
