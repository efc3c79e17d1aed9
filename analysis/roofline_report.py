"""What the bound says about one model on one machine: roofline.json, the table of batches, the curve of the figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.bound import (
    BYTES,
    Decoder,
    Hardware,
    Work,
    batch_at_share,
    bound_s,
    compute_bound_from,
    decode_layer,
    decode_model,
    feasible_batch,
    kv_bytes,
    plateau_per_s,
    training_layer,
    training_model,
)
from analysis.critical import PLATEAU_FRAC
from analysis.plain import plain
from analysis.presets import Gpu, inferred


@dataclass(frozen=True)
class Setting:
    """One question to the bound. `hardware` is all of the GPUs together."""

    model: Decoder
    gpu: Gpu
    num_gpus: int
    hardware: Hardware
    context: int
    dtype: str
    margin_frac: float
    fused: bool

    @property
    def where(self) -> str:
        """The hardware in words."""
        return f"{self.num_gpus} x {self.gpu.label}" if self.num_gpus > 1 else self.gpu.label

    @property
    def kv_copies(self) -> float:
        """Above 1 where more GPUs share a layer than it has KV heads: each then holds a head of its own."""
        return max(1.0, self.num_gpus / self.model.num_kv_heads)

    @property
    def is_inferred(self) -> bool:
        """Whether it is the configuration inferred for the study's figure; its ratios do not depend on the hardware."""
        shown = inferred()
        own = (self.model.name, self.context, self.dtype, self.fused)
        return own == (shown["model"], shown["context"], shown["dtype"], False)

    def works(self) -> dict[str, Work]:
        """Training and decode, for one layer (of those that see the most) and for the model."""
        attended = self.model.layers_by_context(self.context)[0][1]
        found = {
            "train_layer": training_layer(self.model, self.context, attended, self.dtype),
            "decode_layer": decode_layer(self.model, attended, self.dtype, self.kv_copies),
            "train_model": training_model(self.model, self.context, self.dtype),
            "decode_model": decode_model(self.model, self.context, self.dtype, self.kv_copies),
        }
        return {name: work.fused for name, work in found.items()} if self.fused else found


def build(setting: Setting, batch_B: np.ndarray) -> tuple[dict[str, Any], pd.DataFrame]:
    """roofline.json's content and the table of batches."""
    works, hardware, model = setting.works(), setting.hardware, setting.model
    memory = _memory(setting)
    table = pd.DataFrame({"batch": batch_B} | {f"{name}_s": bound_s(works[name], hardware, batch_B) for name in works})
    for name in ("train_layer", "decode_layer", "decode_model"):
        table[f"{name}_ratio"] = table[f"{name}_s"] / table[f"{name}_s"].iloc[0]
    table["train_tokens_per_s"] = batch_B * setting.context / table["train_model_s"]
    table["decode_tokens_per_s"] = batch_B / table["decode_model_s"]
    table["share_of_plateau"] = table["decode_tokens_per_s"] / plateau_per_s(works["decode_model"], hardware)
    table["fits"] = batch_B <= memory["batch_limit"]
    gpu = {key: getattr(setting.gpu, key) for key in ("name", "label", "source")} | {"count": setting.num_gpus}
    report: dict[str, Any] = plain(
        {
            "format": 1,
            "model": asdict(model) | {"weights": model.weights, "layer_weights": model.layer_weights},
            "gpu": gpu | asdict(hardware),
            "where": setting.where,
            "context": setting.context,
            "dtype": setting.dtype,
            "inferred": setting.is_inferred,
            "fused": setting.fused,
            "activation_bytes": works["decode_layer"].activation_bytes,
            "layer": _summary(setting, works["decode_layer"], table, "layer"),
            "whole_model": _summary(setting, works["decode_model"], table, "model"),
            "memory": memory,
        }
    )
    return report, table


def _summary(setting: Setting, decode: Work, table: pd.DataFrame, part: str) -> dict[str, Any]:
    """Decode of a layer or the model: its plateau, the batches on the way to it, what the range of batches gains."""
    hardware, first, last = setting.hardware, table.iloc[0], table.iloc[-1]
    latency, growth = last[f"decode_{part}_s"] / first[f"decode_{part}_s"], last["batch"] / first["batch"]
    return {
        "rho": decode.rho,
        "activation_frac": decode.activation_bytes / decode.sequence_bytes,
        "plateau_tokens_per_s": plateau_per_s(decode, hardware),
        "half_plateau_batch": batch_at_share(decode, hardware, 0.5),
        "saturated_batch": batch_at_share(decode, hardware, PLATEAU_FRAC),
        "compute_bound_from": compute_bound_from(decode, hardware),
        "batch_growth": growth,
        "decode_latency_ratio": latency,
        "decode_throughput_gain": growth / latency,
        "train_latency_ratio": last[f"train_{part}_s"] / first[f"train_{part}_s"],
    }


def _memory(setting: Setting) -> dict[str, Any]:
    """What fits: sequences of the whole context beside the weights, and what rate they allow."""
    model, hardware, decode = setting.model, setting.hardware, setting.works()["decode_model"]
    weight_bytes = model.weights * BYTES[setting.dtype]
    sequence_bytes = kv_bytes(model, setting.context, setting.dtype, setting.kv_copies)
    limit = feasible_batch(weight_bytes, sequence_bytes, hardware.memory_bytes, setting.margin_frac)
    usable = hardware.memory_bytes * (1 - setting.margin_frac)
    rate = limit / float(bound_s(decode, hardware, np.array(limit))) if limit else 0.0
    return {
        "memory_bytes": hardware.memory_bytes,
        "margin_frac": setting.margin_frac,
        "usable_bytes": usable,
        "weight_bytes": weight_bytes,
        "kv_bytes_per_sequence": sequence_bytes,
        "batch_limit": limit,
        "tokens_per_s_at_limit": rate,
        "share_of_plateau_at_limit": rate / plateau_per_s(decode, hardware),
        "gpus_for_weights": int(np.ceil(weight_bytes * setting.num_gpus / usable)),
    }


def curve(setting: Setting, report: dict[str, Any], largest_batch: int) -> pd.DataFrame:
    """The model's decode rate over a range wide enough to show the plateau and the memory limit, for the figure."""
    far = max(largest_batch, 8 * report["whole_model"]["half_plateau_batch"], 2 * report["memory"]["batch_limit"])
    wide_B = np.geomspace(1, far, 200)
    rate = wide_B / bound_s(setting.works()["decode_model"], setting.hardware, wide_B)
    return pd.DataFrame({"batch": wide_B, "decode_tokens_per_s": rate})
