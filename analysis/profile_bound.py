"""The bound beside a profile: what its model could do on its machine, by FLOPs and bytes alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.bound import (
    Decoder,
    Hardware,
    Work,
    attained_share,
    batch_at_share,
    bound_s,
    decode_model,
    plateau_per_s,
    training_model,
)
from analysis.errors import InputError
from analysis.presets import NORMS_PER_LAYER, described_model, gpus
from analysis.profile_file import Curve, Machine, Profile

DTYPES = {"float32": "fp32", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Bound:
    """Rates that no curve exceeds, response tokens per second at batch_M (responses in flight, or B).

    share_A: what each point of the curve attained of it. source: what the hardware's speed is from.
    """

    batch_M: np.ndarray
    tokens_per_s_M: np.ndarray
    plateau: float
    half_batch: float
    share_A: np.ndarray
    source: str


def bound_of(profile: Profile, curve: Curve) -> Bound | None:
    """None where the model is none whose layers the bound describes, or nothing is known of its lengths."""
    lengths = _lengths(profile)
    dtype = DTYPES.get(profile.machine.dtype)
    if profile.model.get("model_type") not in NORMS_PER_LAYER or lengths is None or dtype is None:
        return None
    try:
        model = described_model(profile.model, profile.sweep)
    except InputError:
        return None
    hardware, source = hardware_of(profile.machine)
    work, tokens_per_step = _work(model, curve, *lengths, dtype)
    batch_A = curve.batch_A
    reached_A = np.array([point.in_flight_mean or point.train_batch for point in curve.points])
    rates_A = np.array([point.tokens_per_s.estimate for point in curve.points]) / tokens_per_step
    batch_M = np.geomspace(batch_A[0], max(batch_A[-1], 2 * batch_A[0]), 100)
    return Bound(
        batch_M,
        tokens_per_step * batch_M / bound_s(work, hardware, batch_M),
        tokens_per_step * plateau_per_s(work, hardware),
        batch_at_share(work, hardware, 0.5),
        attained_share(work, hardware, reached_A, rates_A),
        source,
    )


def _lengths(profile: Profile) -> tuple[float, float] | None:
    """Mean tokens of a prompt and of a response, over the arms that generated."""
    found = [
        (point.prompt_tokens_mean, point.response_tokens.mean)
        for curve in profile.of("generate")
        for point in curve.points
        if point.prompt_tokens_mean is not None and point.response_tokens is not None
    ]
    if not found:
        return None
    prompts, responses = np.mean(found, axis=0)
    return float(prompts), float(responses)


def _work(model: Decoder, curve: Curve, prompt: float, response: float, dtype: str) -> tuple[Work, float]:
    """A decode step in the middle of a response, or training on a response; and the response tokens that makes.

    In training the group may share the computation of its prompt: each response is given its part of it.
    """
    if curve.phase == "generate":
        return decode_model(model, round(prompt + response / 2), dtype), 1.0
    group_size = curve.points[0].train_batch / curve.points[0].num_prompts
    return training_model(model, round(response + prompt / group_size), dtype), response


def hardware_of(machine: Machine) -> tuple[Hardware, str]:
    """A GPU's data sheet, where it is known; else the speeds that were measured on the machine."""
    dtype, words = DTYPES.get(machine.dtype, ""), machine.device.casefold()
    named = [gpu for gpu in gpus().values() if all(part in words for part in gpu.name.split("-"))]
    known = [gpu for gpu in named if machine.on_gpu and dtype in gpu.peak_flop_per_s]
    if known:
        gpu = max(known, key=lambda gpu: len(gpu.name))
        return gpu.hardware(dtype), f"data sheet of {gpu.label}"
    measured = Hardware(machine.matmul_flop_per_s, machine.copy_bytes_per_s, machine.memory_bytes)
    return measured, "matrix product and copy measured on this machine"
