"""What DeepSpeed is told about a trial: its own configuration, as data."""

from __future__ import annotations

from typing import Any

from harness.batching import BatchShape
from harness.execution import DeepSpeedConfig

BUCKET_ELEMENTS = 50_000_000
"""Elements of a gradient reduction: its buffer is allocated whole, 200 MB in float32."""


def engine_config(
    settings: DeepSpeedConfig, shape: BatchShape, dtype: str, clip_norm: float | None, on_gpu: bool
) -> dict[str, Any]:
    """The configuration of one engine. The optimizer itself is given to it as an object.

    Gradients are added up and reduced in float32 whatever the weights are. DeepSpeed divides the gradient by
    (norm + 1e-6) / clip_norm where that is above 1.
    """
    zero: dict[str, Any] = {
        "stage": settings.zero_stage,
        "reduce_bucket_size": BUCKET_ELEMENTS,
        "allgather_bucket_size": BUCKET_ELEMENTS,
        "stage3_param_persistence_threshold": settings.whole_below,
    }
    in_memory = {"device": "cpu", "pin_memory": on_gpu}
    if settings.offload_optimizer:
        zero["offload_optimizer"] = in_memory
    if settings.offload_parameters:
        zero["offload_param"] = in_memory
    accumulation = shape.gradient_accumulation_steps
    if settings.offload_optimizer:
        accumulation = max(accumulation, 2)  # with 1 it keeps no sum, and a step that measures takes more passes
    return {
        "train_micro_batch_size_per_gpu": shape.micro,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip_norm or 0.0,
        "bf16": {"enabled": dtype == "bfloat16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,  # torch's fused Adam runs on a CPU too, and nothing has to be compiled
    }
