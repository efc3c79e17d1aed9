"""The sweeps for GPUs say what the study published, and ask for hardware that their heads name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from harness.config import TrialConfig
from harness.fitting import num_fitting
from harness.plan import Plan, make_plan
from harness.sweep_file import load_sweep
from harness.tasks import needs_hub
from harness.tasks.config import MathConfig

SWEEPS = Path(__file__).parents[1] / "sweeps"


def planned(name: str) -> Plan:
    return make_plan(load_sweep(SWEEPS / f"{name}.yaml"))


def configs(name: str) -> list[TrialConfig]:
    return [trial.config for trial in planned(name).trials]


def test_the_published_grpo_study() -> None:
    plan = planned("paper_grpo")
    trials = {(t.config.batch.num_prompts, t.config.optimizer.lr_rule): t.config for t in plan.trials}
    ruled = sorted(prompts for prompts, rule in trials if rule == "sqrt")
    assert ruled == [64, 128, 256, 512, 1024, 2048, 4096]
    assert [prompts for prompts, rule in trials if rule == "fixed"] == [256]
    reference = trials[128, "sqrt"]
    assert plan.reference_arm == next(t.arm for t in plan.trials if t.config is reference)
    assert (reference.batch.train_batch, reference.optimizer.lr) == (1024, 1e-6)
    assert trials[1024, "sqrt"].optimizer.lr == pytest.approx(1e-6 * math.sqrt(8))
    assert trials[256, "fixed"].optimizer.lr == 1e-6
    for trial in trials.values():
        assert trial.batch.group_size == 8 and trial.algorithm.passes == 1
        assert trial.batch.gen_batch == 2 * trial.batch.train_batch and trial.execution.mode == "streaming"
        assert trial.evaluation.samples_per_prompt == 32 and trial.evaluation.num_prompts == 60
    assert (plan.target.metric, plan.target.value) == ("eval/score", 0.77)
    # At most 11.90 h / 101.3 s = 423 updates of 1024 to the target, and a penalty of 1.60.
    updates = math.ceil(11.90 * 3600 / 101.3)
    assert updates == 423 and reference.budget_samples >= 1.6 * updates * 1024


def test_the_published_ppo_study() -> None:
    trials = configs("paper_ppo")
    assert [trial.batch.train_batch for trial in trials] == [256, 512, 1024, 2048, 4096]
    assert all(trial.algorithm.name == "ppo" and trial.critic_optimizer is not None for trial in trials)
    grpo = configs("paper_grpo")[0]
    assert (trials[0].model, trials[0].task) == (grpo.model, grpo.task)


@pytest.mark.parametrize(
    ("name", "node", "nodes"),
    [
        ("gpu_1p5b", {"CPU": 4, "GPU": 1}, 1),
        ("paper_grpo", {"CPU": 24, "GPU": 8}, 3),
        ("paper_ppo", {"CPU": 24, "GPU": 8}, 5),
    ],
)
def test_what_a_trial_needs_is_what_the_head_says(name: str, node: dict[str, float], nodes: int) -> None:
    for trial in configs(name):
        assert num_fitting([node] * nodes, trial.execution) == 1
        assert trial.budget_samples % trial.batch.train_batch == 0  # all curves end at one N
        assert trial.model.dtype == "bfloat16" and trial.execution.trainer == "deepspeed"  # float32 masters
        assert isinstance(trial.task, MathConfig) and needs_hub(trial.task)
        assert all(data.revision for data in (*trial.task.train, *trial.task.held_out))
