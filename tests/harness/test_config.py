"""A sweep file is strict: every wrong input is one sentence with the field, the value and what is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from harness.config import SweepConfig, TrialConfig, parse_seeds
from harness.errors import InputError
from harness.sweep_file import load_sweep

GOOD: dict[str, Any] = {
    "sweep": "demo",
    "question": "Does it work?",
    "task": {"name": "reverse_digits", "num_digits": 6},
    "batch": {"group_size": 8},
    "optimizer": {"lr": 3.0e-4},
    "budget_samples": 1024,
    "seeds": 2,
    "reference": {"batch.num_prompts": 8},
    "arms": [{"batch.num_prompts": [8, 16]}],
}


def write(folder: Path, text: str) -> Path:
    path = folder / "demo.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, changes: dict[str, Any] | None = None, overrides: list[str] | None = None) -> SweepConfig:
    return load_sweep(write(folder, yaml.safe_dump(GOOD | (changes or {}))), overrides or [])


def refusal(folder: Path, changes: dict[str, Any] | None = None, overrides: list[str] | None = None) -> str:
    """The message without the file name that it starts with."""
    with pytest.raises(InputError) as caught:
        load(folder, changes, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{folder / 'demo.yaml'}: ")


def test_a_file_gives_its_values_and_the_defaults(tmp_path: Path) -> None:
    sweep = load(tmp_path, {"optimizer": {"lr": 1, "betas": [0.9, 0.95]}})
    assert (sweep.sweep, sweep.seeds, sweep.batch.group_size) == ("demo", (0, 1), 8)
    assert (sweep.optimizer.lr, sweep.optimizer.betas) == (1.0, (0.9, 0.95))
    assert (sweep.evaluation.every_samples, sweep.execution.max_attempts) == (1024, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # unknown keys: the nearest valid one of the same section, or the section where the name belongs
        ({"batch": {"num_promts": 4}}, "batch.num_promts: unknown; did you mean batch.num_prompts?"),
        ({"lr": 1e-3}, "lr: unknown; did you mean optimizer.lr?"),
        ({"evaluaton": {}}, "evaluaton: unknown; did you mean evaluation?"),
        ({"task": {"name": "digit_sums", "digits": 3}}, "task.digits: unknown; did you mean task.num_digits?"),
        ({"model": {"warm_start": {"step": 3}}}, "model.warm_start.step: unknown; did you mean model.warm_start.steps?"),
        ({"task": {"name": "reasoning_gym", "generator": "leg_counting", "num_digits": 6}}, "task.num_digits: unknown; another task has it"),
        (
            {"execution": {"engine": "vllm", "gpus_per_rank": 1.0, "vllm": {"tensor_parallel": 2}}},
            "execution.vllm.tensor_parallel: 2; an engine has 1 GPUs here, needs 2: execution.layout separate and execution.gpus_per_engine 2",
        ),
        # wrong types
        ({"budget_samples": 1024.0}, "budget_samples: 1024.0; needs a whole number; write 1024"),
        ({"budget_samples": True}, "budget_samples: true; needs a whole number"),
        ({"batch": {"group_size": "8"}}, "batch.group_size: '8', which is text; needs a whole number; write 8 without quotes"),
        ({"batch": None}, "batch: empty; needs a mapping"),
        ({"batch": [8]}, "batch: a list; needs a mapping"),
        ({"tracking": {"wandb": "yes"}}, "tracking.wandb: 'yes', which is text; needs true or false"),
        ({"question": 3}, "question: 3; needs text"),
        ({"optimizer": {"lr": 1e-3, "betas": 0.9}}, "optimizer.betas: 0.9; needs a list"),
        (
            {"optimizer": {"lr": 1e-3, "betas": [0.9, "0.99"]}},
            "optimizer.betas[1]: '0.99', which is text; needs a number; write 0.99 without quotes",
        ),
        ({"optimizer": {"lr": 1e-3, "betas": [0.9]}}, "optimizer.betas[1]: missing; needs the decay of the two moments"),
        # values out of range
        ({"evaluation": {"target": 1.0}}, "evaluation.target: 1.0; needs a value above 0 and below 1"),
        ({"evaluation": {"target": 0.0}}, "evaluation.target: 0.0; needs a value above 0 and below 1"),
        ({"evaluation": {"target": 70}}, "evaluation.target: 70; needs a value above 0 and below 1"),
        ({"optimizer": {"lr": 0}}, "optimizer.lr: 0; needs a value above 0"),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr: nan; needs a finite number"),
        ({"batch": {"num_prompts": 0}}, "batch.num_prompts: 0; needs a value of at least 1"),
        # choices
        ({"task": {"name": "reverse_digit"}}, "task.name: 'reverse_digit' does not exist; known: reverse_digits, digit_sums, rising_digits, reasoning_gym, math; did you mean reverse_digits?"),
        ({"task": {"name": "chess"}}, "task.name: 'chess' does not exist; known: reverse_digits, digit_sums, rising_digits, reasoning_gym, math"),
        ({"task": {"num_digits": 3}}, "task.name: missing; needs one of reverse_digits, digit_sums, rising_digits, reasoning_gym, math"),
        ({"algorithm": {"name": "grpoo"}}, "algorithm.name: 'grpoo' does not exist; known: grpo, dr_grpo, dapo, gspo, cispo, rloo, remax, reinforce, ppo, ppo_ewma; did you mean grpo?"),
        ({"optimizer": {"lr": 1e-3, "lr_rule": "sqr"}}, "optimizer.lr_rule: 'sqr' is not one of fixed, sqrt, linear, adam_sde, adam_sde_power, surge, table; did you mean sqrt?"),
        ({"algorithm": {"name": "grpo", "std_ddof": 2}}, "algorithm.std_ddof: 2 is not one of 0, 1"),
        ({"execution": {"engine": "vlm"}}, "execution.engine: 'vlm' is not one of transformers, vllm; did you mean vllm?"),
        # another distribution than the one that is trained
        ({"sampling": {"top_p": 0.9}}, "sampling.top_p: 0.9; responses would come from another distribution than the one that is trained, and every ratio of the two be wrong; needs 1"),
        ({"sampling": {"top_k": 20}}, "sampling.top_k: 20; responses would come from another distribution than the one that is trained, and every ratio of the two be wrong; needs 0"),
        # what every sweep has
        ({"optimizer": {}}, "optimizer.lr: missing; needs the learning rate of the reference arm"),
        ({"sweep": "a b/c"}, "sweep: 'a b/c'; needs letters, digits, '.', '_' and '-' only, for instance a-b-c"),
        ({"sweep": "reference"}, "sweep: 'reference' is the name of a committed folder of results/; choose another"),
        ({"reference": {}}, "reference: empty; needs names that pick one arm, for instance {batch.num_prompts: 8}"),
        ({"arms": []}, "arms: empty; needs at least one arm, for instance [{batch.num_prompts: [8, 16]}]"),
        ({"arms": [8]}, "arms[0]: 8; needs a mapping"),
        ({"seeds": 0}, "seeds: 0; needs a count of at least 1 or a list of whole numbers such as [0, 1, 2]"),
        ({"seeds": [1, "2"]}, "seeds: [1, '2']; needs a count of at least 1 or a list of whole numbers such as [0, 1, 2]"),
        ({"seeds": [1, 1]}, "seeds: 1 occurs more than once; two equal seeds give one curve, not two"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_sentence(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert refusal(tmp_path, changes) == message


def test_several_problems_are_all_told(tmp_path: Path) -> None:
    assert refusal(tmp_path, {"budget_samples": -1, "lrr": 1}) == (
        "budget_samples: -1; needs a value of at least 1; lrr: unknown; did you mean optimizer.lr?"
    )


def test_a_missing_field(tmp_path: Path) -> None:
    text = yaml.safe_dump({name: value for name, value in GOOD.items() if name != "budget_samples"})
    with pytest.raises(InputError, match=re.escape("budget_samples: missing; needs the number of samples every trial")):
        load_sweep(write(tmp_path, text))


@pytest.mark.parametrize(
    ("written", "better"),
    [("3e-4", "3.0e-4"), ("'3.0e-4'", "3.0e-4"), ("1.5e4", "1.5e+4"), ("1e4", "1.0e+4")],
)
def test_a_rate_written_as_text_says_how_to_write_it(tmp_path: Path, written: str, better: str) -> None:
    # YAML reads an exponent without a dot or without a sign as text
    text = yaml.safe_dump(GOOD).replace("lr: 0.0003", f"lr: {written}")
    given = written.strip("'")
    with pytest.raises(InputError) as caught:
        load_sweep(write(tmp_path, text))
    assert f"optimizer.lr: '{given}', which is text; needs a number; write {better} (" in str(caught.value)
    assert yaml.safe_load(better) == float(given)


def test_files_that_are_no_sweep_files(tmp_path: Path) -> None:
    def message(text: str) -> str:
        with pytest.raises(InputError) as caught:
            load_sweep(write(tmp_path, text))
        return str(caught.value).removeprefix(str(tmp_path / "demo.yaml"))

    assert message("") == ": holds empty; needs a mapping that starts like 'sweep: default'"
    assert message("- a\n") == ": holds a list; needs a mapping that starts like 'sweep: default'"
    assert message("sweep: a\nseeds: [1\n").startswith(", line 3, column 1: not valid YAML: ")
    assert message("sweep: a\nsweep: b\n") == ", line 2, column 1: not valid YAML: 'sweep' is given twice"
    with pytest.raises(InputError, match=re.escape("no such sweep file; did you mean") + ".*demo.yaml"):
        load_sweep(tmp_path / "deno.yaml")
    (tmp_path / "demo.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read as a sweep file"):
        load_sweep(tmp_path / "demo.yaml")


def test_overrides_are_typed_as_in_the_file(tmp_path: Path) -> None:
    sweep = load(
        tmp_path, overrides=["batch.group_size=4", "optimizer.lr=1.0e-3", "seeds=[5]", "model.warm_start.steps=3"]
    )
    assert (sweep.batch.group_size, sweep.optimizer.lr, sweep.seeds) == (4, 1e-3, (5,))
    assert sweep.model.warm_start is not None and sweep.model.warm_start.steps == 3
    assert load(tmp_path, overrides=["reference.batch.num_prompts=16"]).reference == {"batch.num_prompts": 16}
    assert load(tmp_path, overrides=["arms=[{batch.num_prompts: 8}]"]).arms == ({"batch.num_prompts": 8},)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch.groupsize=4", "batch.groupsize: unknown; did you mean batch.group_size?"),
        ("optimizer.lr=3e-4", "optimizer.lr: '3e-4', which is text; needs a number; write 3.0e-4 (YAML wants a dot and a sign in a number with e)"),
        ("batch.group_size", "--set batch.group_size: needs dotted.name=value, for instance --set batch.group_size=4"),
        ("seeds.x=1", "--set seeds.x=1: seeds is 2, which holds no names"),
        ("batch.num_prompts=4", "--set batch.num_prompts=4: has no effect, because every arm sets batch.num_prompts itself; choose arms with --only, or replace them with --set 'arms=[{batch.num_prompts: ...}]'"),
    ],
)  # fmt: skip
def test_wrong_overrides(tmp_path: Path, override: str, message: str) -> None:
    assert refusal(tmp_path, overrides=[override]) == message


TRIAL: dict[str, Any] = {"optimizer": {"lr": 1e-3, "lr_ref": 1e-3}, "budget_samples": 100, "seed": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch": {"num_prompts": 16, "group_size": 8}},
            "budget_samples: 100 is below one rollout batch of 128 responses (16 x 8); needs at least 128",
        ),
        (
            {"batch": {"num_prompts": 16, "group_size": 1}},
            "batch.group_size: 1 leaves grpo no group to compare with; needs at least 2",
        ),
        (
            {"batch": {"mini_batch_size": 7}},
            "batch.mini_batch_size: 7 does not divide the rank's 64 responses (64 % 7 = 1); the nearest that do: 4 or 8",
        ),
        (
            {"execution": {"ranks": 7}},
            "batch.num_prompts 8 x batch.group_size 8 = 64 responses do not divide over execution.ranks 7 (64 % 7 = 1); "
            "the nearest that do are 63 and 70 (num_prompts 7 or 14 at this group_size)",
        ),
        (
            {"batch": {"num_prompts": 10**12, "group_size": 8}},
            "batch.num_prompts 1000000000000 x batch.group_size 8 = 8000000000000 responses; needs at most 2147483647",
        ),
        (
            {"execution": {"ranks": 2}},
            "execution.ranks: 2; the trainer torch is one process, needs 1 (execution.trainer deepspeed takes more)",
        ),
        (
            {"execution": {"engine": "vllm"}, "sampling": {"temperature": 2.5}},
            "sampling.temperature: 2.5; the engine vllm needs 0.01 to 2",
        ),
        (
            {"algorithm": {"name": "grpo", "loss_average": "constant"}},
            "algorithm.constant_tokens: unset; loss_average constant needs it, for instance 8",
        ),
        (
            {"algorithm": {"name": "dr_grpo"}},
            "algorithm.constant_tokens: unset; loss_average constant needs it, for instance 8",
        ),
        (
            {"algorithm": {"name": "rloo"}, "batch": {"num_prompts": 64, "group_size": 1}},
            "batch.group_size: 1 leaves rloo no group to compare with; needs at least 2",
        ),
        (
            {"task": {"name": "digit_sums", "num_digits": 2}},
            "evaluation.num_prompts: 512 leaves no prompt to train on; task.digit_sums with num_digits 2 has 100, needs fewer",
        ),
    ],
)
def test_a_trial_that_cannot_run_is_not_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        TrialConfig.model_validate(TRIAL | changes)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["remax", "reinforce", "ppo", "ppo_ewma"])
def test_a_baseline_outside_the_group_allows_a_group_of_one(name: str) -> None:
    trial = TRIAL | {"algorithm": {"name": name}, "batch": {"num_prompts": 64, "group_size": 1}}
    assert not TrialConfig.model_validate(trial).algorithm.uses_group_baseline


def test_derived_values_of_a_trial() -> None:
    trial = TrialConfig.model_validate(TRIAL)
    assert trial.batch_shape.train_batch == 64
    assert trial.num_rollout_batches == 2  # 64 + 64 is the first to reach 100
    assert trial.checkpoint_every_samples == 4096  # 4 x 1024
    explicit = TrialConfig.model_validate(TRIAL | {"execution": {"checkpoint_every_samples": 64}})
    assert explicit.checkpoint_every_samples == 64


def test_configurations_cannot_be_changed_and_survive_json() -> None:
    trial = TrialConfig.model_validate(TRIAL)
    with pytest.raises(ValidationError):
        trial.seed = 3  # type: ignore[misc]
    assert TrialConfig.model_validate(trial.model_dump(mode="json")) == trial
    assert TrialConfig.model_validate_json(trial.model_dump_json()) == trial


def test_every_field_says_what_it_is() -> None:
    def without_description(schema: dict[str, Any]) -> list[str]:
        parts = [schema, *schema.get("$defs", {}).values()]
        fields = [(part["title"], name, field) for part in parts for name, field in part["properties"].items()]
        return [
            f"{title}.{name}" for title, name, field in fields if "description" not in field and "const" not in field
        ]

    assert without_description(SweepConfig.model_json_schema()) == []
    assert without_description(TrialConfig.model_json_schema()) == []


def test_seeds_as_count_and_list() -> None:
    assert parse_seeds(3) == (0, 1, 2)
    assert parse_seeds([100, 7]) == (100, 7)
