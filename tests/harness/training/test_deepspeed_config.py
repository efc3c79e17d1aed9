"""What DeepSpeed is told, and what is refused before a process starts."""

from __future__ import annotations

from typing import Any

import pytest

from harness.batching import resolve_batch
from harness.errors import EnvironmentProblem, InputError
from harness.execution import DeepSpeedConfig
from harness.members import in_process
from harness.training.deepspeed_config import engine_config
from harness.training.ranks import start_ranks
from tests.harness.small import planned_trial

SHAPE = resolve_batch(8, 8, ranks=2, mini_batch_size=16, micro_batch_size_per_gpu=4)


def config_for(dtype: str = "float32", clip_norm: float | None = None, **settings: Any) -> dict[str, Any]:
    return engine_config(DeepSpeedConfig(**settings), SHAPE, dtype, clip_norm, on_gpu=True)


def test_accumulation_is_mini_over_micro() -> None:
    found = config_for()
    assert (found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]) == (4, 4)
    whole = engine_config(DeepSpeedConfig(), resolve_batch(4, 4), "float32", None, on_gpu=False)
    assert (whole["train_micro_batch_size_per_gpu"], whole["gradient_accumulation_steps"]) == (16, 1)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_are_kept_and_sent_in_float32(stage: int) -> None:
    for dtype in ("float32", "bfloat16"):
        found = config_for(dtype, zero_stage=stage)
        assert found["zero_optimization"]["stage"] == stage
        assert found["bf16"]["enabled"] == (dtype == "bfloat16")
        assert (found["data_types"]["grad_accum_dtype"], found["communication_data_type"]) == ("fp32", "fp32")


def test_without_a_clip_nothing_is_clipped() -> None:
    assert config_for()["gradient_clipping"] == 0.0
    assert config_for(clip_norm=0.5)["gradient_clipping"] == 0.5


def test_offloading_is_to_pinned_memory_and_keeps_a_sum() -> None:
    zero = config_for(zero_stage=3, offload_optimizer=True, offload_parameters=True)["zero_optimization"]
    assert zero["offload_optimizer"] == zero["offload_param"] == {"device": "cpu", "pin_memory": True}
    assert not {"offload_optimizer", "offload_param"} & config_for(zero_stage=3)["zero_optimization"].keys()
    whole = engine_config(DeepSpeedConfig(offload_optimizer=True), resolve_batch(4, 4), "float32", None, on_gpu=False)
    assert whole["gradient_accumulation_steps"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"deepspeed": {"zero_stage": 0, "offload_optimizer": True}},
            "execution.deepspeed.offload_optimizer: true at zero_stage 0; needs at least stage 1",
        ),
        (
            {"deepspeed": {"zero_stage": 2, "offload_parameters": True}},
            "execution.deepspeed.offload_parameters: true at zero_stage 2; needs at least stage 3",
        ),
        (
            {"ranks": 2, "gpus_per_rank": 0.5},
            "execution.gpus_per_rank: 0.5; ranks cannot meet on one GPU, 2 of them need 1 each",
        ),
        (
            {"ranks": 3},
            "batch.num_prompts 4 x batch.group_size 4 = 16 responses do not divide over execution.ranks 3 (16 % 3 = 1); "
            "the nearest that do are 15 and 18 (num_prompts 3 or 6 at this group_size)",
        ),
        (
            {"ranks": 32},
            "batch.num_prompts 4 x batch.group_size 4 = 16 responses are too few for execution.ranks 32; needs at least 32",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_the_plan(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        planned_trial(execution={"trainer": "deepspeed", **changes})
    assert str(error.value).endswith(message)


def test_bfloat16_needs_a_stage_that_keeps_float32() -> None:
    with pytest.raises(InputError, match="execution.deepspeed.zero_stage: 0 .* needs 1, 2 or 3"):
        planned_trial(execution={"trainer": "deepspeed", "deepspeed": {"zero_stage": 0}}, model__dtype="bfloat16")
    planned_trial(execution={"trainer": "torch", "deepspeed": {"zero_stage": 0}}, model__dtype="bfloat16")


def test_a_missing_package_is_told_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.training.ranks.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"deepspeed, a package that is not installed; run: make engines"):
        start_ranks(planned_trial(execution__trainer="deepspeed").config, in_process)
