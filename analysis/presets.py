"""Models and GPUs by name, from the tables in analysis/data; a model also from its own config.json."""

from __future__ import annotations

import csv
import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from analysis.bound import Decoder, Hardware
from analysis.errors import InputError

# Architectures whose layers are what analysis.bound counts (attention, gated MLP); norms of hidden size in each layer.
NORMS_PER_LAYER = {
    "gemma": 2,
    "gemma2": 4,
    "gemma3_text": 4,
    "llama": 2,
    "mistral": 2,
    "olmo2": 2,
    "phi3": 2,
    "qwen2": 2,
    "qwen3": 2,
    "smollm3": 2,
}


@dataclass(frozen=True)
class Gpu:
    """One GPU as its data sheet has it: dense FLOP/s by dtype, bytes/s, bytes (a GB is 10^9)."""

    name: str
    label: str
    peak_flop_per_s: dict[str, float]
    bandwidth_bytes_per_s: float
    memory_bytes: float
    source: str

    def hardware(self, dtype: str, count: int = 1, memory_bytes: float | None = None) -> Hardware:
        """`count` of it as one; memory_bytes of each, if not the data sheet's. Raises InputError without the dtype."""
        if dtype not in self.peak_flop_per_s:
            known = listed(self.peak_flop_per_s)
            raise InputError(f"--dtype: {self.label} does not compute in {dtype}; it computes in {known}")
        memory = self.memory_bytes if memory_bytes is None else memory_bytes
        return Hardware(self.peak_flop_per_s[dtype] * count, self.bandwidth_bytes_per_s * count, memory * count)


def rows(name: str) -> list[dict[str, str]]:
    """A table of analysis/data, one dict a row."""
    with files("analysis").joinpath("data", name).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def inferred() -> dict[str, Any]:
    """The configuration that is inferred to lie behind the study's per-layer figure."""
    found: dict[str, Any] = json.loads(files("analysis").joinpath("data", "inferred.json").read_text(encoding="utf-8"))
    return found


def models() -> dict[str, Decoder]:
    """The models that are shipped, by name."""
    return {row["name"]: _decoder(row) for row in rows("models.csv")}


def _decoder(row: dict[str, str]) -> Decoder:
    sizes = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
    return Decoder(
        name=row["name"],
        tied_embeddings=row["tied_embeddings"] == "yes",
        norms_per_layer=int(row["norms_per_layer"]),
        windowed_layers=int(row["windowed_layers"]),
        window=int(row["window"]) if row["window"] else None,
        source=row["source"],
        **{name: int(row[name]) for name in sizes},
    )


def gpus() -> dict[str, Gpu]:
    """The GPUs that are shipped, by name."""
    return {row["name"]: _gpu(row) for row in rows("gpus.csv")}


def _gpu(row: dict[str, str]) -> Gpu:
    bf16 = 1e12 * float(row["bf16_tflop_per_s"])
    peaks = {"bf16": bf16, "fp16": bf16}
    if row["fp8_tflop_per_s"]:
        peaks["fp8"] = 1e12 * float(row["fp8_tflop_per_s"])
    bandwidth, memory = 1e9 * float(row["bandwidth_gb_per_s"]), 1e9 * float(row["memory_gb"])
    return Gpu(row["name"], row["label"], peaks, bandwidth, memory, row["source"])


def find_gpu(name: str) -> Gpu:
    """A shipped GPU, whatever the case. Raises InputError with the nearest name."""
    known = gpus()
    if name.casefold() not in known:
        raise InputError(f"--gpu: {name} is not known; {_nearest(name, known)}known: {listed(known)}")
    return known[name.casefold()]


def find_model(name: str) -> Decoder:
    """A shipped model by name, or one described by a transformers config.json or the folder that holds it."""
    known = models()
    if name.casefold() in known:
        return known[name.casefold()]
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return read_config(path)
    raise InputError(
        f"--model: {name} is neither a known model nor a config.json (or a folder with one); "
        f"{_nearest(name, known)}known: {listed(known)}"
    )


def read_config(path: Path) -> Decoder:
    """A model from its transformers config.json; what the file leaves out is what transformers would take."""
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"--model: {path} is not JSON ({error})") from None
    if not isinstance(described, dict) or not isinstance(described.get("model_type"), str):
        raise InputError(f"--model: {path} has no model_type; needed is the config.json of a transformers model")
    # Here, because it takes seconds and a shipped model needs none of it.
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True).get_text_config()
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"--model: {path} cannot be read by transformers: {str(error).splitlines()[0]}") from None
    return _from_config(config, path)


def described_model(described: dict[str, Any], name: str) -> Decoder:
    """A model by the content of its config.json. Raises InputError where the bound does not describe it."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.for_model(**described).get_text_config()
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"the model of {name} is none that transformers knows: {str(error).splitlines()[0]}") from None
    return _from_config(config, Path(name))


def _from_config(config: Any, path: Path) -> Decoder:
    if config.model_type not in NORMS_PER_LAYER:
        raise InputError(
            f"--model: {path} is of model_type {config.model_type}, whose layers the bound does not describe; "
            f"{_nearest(config.model_type, NORMS_PER_LAYER)}dense decoders it describes: {listed(NORMS_PER_LAYER)}"
        )
    num_heads, window = config.num_attention_heads, getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"]
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise InputError(f"--model: {path} has layers of {listed(sorted(unknown))}, which the bound does not describe")
    windowed = kinds.count("sliding_attention") * config.num_hidden_layers // len(kinds)
    return Decoder(
        name=path.parent.name if path.name == "config.json" and path.parent.name else path.stem,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=num_heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        vocab_size=config.vocab_size,
        tied_embeddings=bool(config.tie_word_embeddings),
        norms_per_layer=NORMS_PER_LAYER[config.model_type],
        windowed_layers=windowed if window else 0,
        window=window,
        source=str(path),
    )


def listed(names: Iterable[str]) -> str:
    """Names, separated by commas."""
    return ", ".join(names)


def _nearest(name: str, known: Iterable[str]) -> str:
    names, wanted = list(known), name.casefold()
    near = [other for other in names if other.startswith(wanted)] or difflib.get_close_matches(wanted, names, n=1)
    return f"nearest is {' or '.join(near)}; " if near else ""
