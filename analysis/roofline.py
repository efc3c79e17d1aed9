"""python -m analysis roofline [--model CONFIG] [--context L] [--batch 1..32] [--gpu H100]"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from analysis.bound import BYTES
from analysis.critical import PLATEAU_FRAC
from analysis.errors import InputError
from analysis.labels import digits
from analysis.presets import find_gpu, find_model, inferred, listed
from analysis.roofline_figure import draw
from analysis.roofline_report import Setting, build, curve

# Above this share of a sequence's bytes a reader must know how activations are counted.
LARGE_ACTIVATIONS = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes; without arguments it shows the configuration inferred for the study's figure."""
    shown, add = inferred(), parser.add_argument
    add("--model", default=shown["model"], help="a shipped model, a config.json or the folder that holds one")
    add("--context", type=int, default=shown["context"], help="tokens of a sequence, prompt and response")
    add("--batch", default=shown["batch"], help="sequences: 1..32, or a list such as 1,8,64")
    add("--gpu", default=shown["gpu"], help="a shipped GPU, such as H100")
    add("--gpus", type=int, default=1, help="GPUs that share the model (tensor parallel), communication not counted")
    add("--dtype", default=shown["dtype"], help=f"of weights, activations and KV cache: {listed(BYTES)}")
    add("--memory-gb", type=float, help="memory of a GPU in 10^9 bytes, if not the data sheet's")
    add("--margin", type=float, default=0.1, help="share of the memory left for everything else")
    add("--fused", action="store_true", help="count no activation traffic, as for kernels that keep it on the chip")
    add("--out", type=Path, help="folder to write to, if not results/roofline/<model>-<gpu>-L<context>")


def run(options: argparse.Namespace) -> int:
    """Print the bound, write roofline.json, roofline.csv, roofline.png and roofline.svg."""
    setting, batch_B = _setting(options), parse_batch(options.batch)
    report, table = build(setting, batch_B)
    count = f"{setting.num_gpus}x" if setting.num_gpus > 1 else ""
    fused = "-fused" if setting.fused else ""
    name = f"{setting.model.name}-{count}{setting.gpu.name}-L{setting.context}{fused}"
    folder: Path = options.out or Path("results/roofline") / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "roofline.json").write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
    table.to_csv(folder / "roofline.csv", index=False)
    draw(report, table, curve(setting, report, batch_B[-1]), folder)
    _print(report, table)
    print(f"\n{folder}: roofline.json, roofline.csv, roofline.png, roofline.svg")
    return 0


def _setting(options: argparse.Namespace) -> Setting:
    if options.dtype not in BYTES:
        raise InputError(f"--dtype: {options.dtype} is not known; known: {listed(BYTES)}")
    if options.context < 1:
        raise InputError(f"--context: {options.context}; needed is a number of tokens, 1 or more")
    if not 0 <= options.margin < 1:
        raise InputError(f"--margin: {options.margin:g}; needed is a share of the memory, at least 0 and below 1")
    if options.memory_gb is not None and not 0 < options.memory_gb < float("inf"):
        raise InputError(f"--memory-gb: {options.memory_gb:g}; needed is a size above 0")
    model, gpu = find_model(options.model), find_gpu(options.gpu)
    if options.gpus < 1 or model.num_heads % options.gpus:
        divisors = [n for n in range(1, model.num_heads + 1) if model.num_heads % n == 0]
        near = min(divisors, key=lambda n: abs(n - options.gpus))
        needed = f"a number that divides the {model.num_heads} heads of {model.name}"
        raise InputError(f"--gpus: {options.gpus}; needed is {needed}; nearest is {near}")
    memory_bytes = None if options.memory_gb is None else 1e9 * options.memory_gb
    hardware = gpu.hardware(options.dtype, options.gpus, memory_bytes)
    return Setting(model, gpu, options.gpus, hardware, options.context, options.dtype, options.margin, options.fused)


def parse_batch(text: str) -> np.ndarray:
    """Batches of `1..32` (every one) or `1,8,64`, ascending. Raises InputError otherwise.

    >>> parse_batch("1..4"), parse_batch("8,1")
    (array([1, 2, 3, 4]), array([1, 8]))
    """
    span = re.fullmatch(r"\s*(\d{1,6})\s*\.\.\s*(\d{1,6})\s*", text)
    if span and 1 <= int(span[1]) <= int(span[2]):
        return np.arange(int(span[1]), int(span[2]) + 1)
    if re.fullmatch(r"\s*[1-9]\d{0,5}\s*(,\s*[1-9]\d{0,5}\s*)*", text):
        return np.unique([int(part) for part in text.split(",")])
    raise InputError(f"--batch: {text!r}; needed is a range such as 1..32 or a list such as 1,8,64, from 1 to 999999")


COLUMNS = {
    "B": lambda row: f"{row['batch']:,.0f}",
    "training, a layer (ms)": lambda row: f"{digits(1e3 * row['train_layer_s'])}",
    "ratio": lambda row: f"{digits(row['train_layer_ratio'])}",
    "decode, a layer (us)": lambda row: f"{digits(1e6 * row['decode_layer_s'])}",
    "ratio ": lambda row: f"{digits(row['decode_layer_ratio'])}",
    "decode, model (ms)": lambda row: f"{digits(1e3 * row['decode_model_s'])}",
    "tokens/s": lambda row: f"{row['decode_tokens_per_s']:,.0f}",
    "of plateau": lambda row: f"{row['share_of_plateau']:.0%}",
    "fits": lambda row: "yes" if row["fits"] else "no",
}


def _print(report: dict[str, Any], table: pd.DataFrame) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=140)
    for line in sentences(report):
        console.print(line, soft_wrap=True, markup=False)
    console.print()
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        grid.add_column(name, justify="right", no_wrap=True)
    for row in table[_shown(table["batch"].to_numpy())].to_dict("records"):
        grid.add_row(*(cell(row) for cell in COLUMNS.values()))
    console.print(grid)


def _shown(batch_B: np.ndarray) -> np.ndarray:
    """Of many batches the ends and the powers of two; the CSV has all."""
    ends = np.isin(batch_B, [batch_B[0], batch_B[-1]])
    return np.asarray(ends | ((batch_B & (batch_B - 1)) == 0) | (len(batch_B) <= 12))


def sentences(report: dict[str, Any]) -> list[str]:
    """The bound in words."""
    layer, whole = report["layer"], report["whole_model"]
    turn = whole["compute_bound_from"]
    binds = (
        "memory traffic binds at every batch" if turn is None else f"arithmetic binds from {digits(turn)} sequences on"
    )
    found = [
        f"Lower bounds for {report['model']['name']} in {report['dtype']} on {report['where']}, sequences of "
        f"{report['context']:,} tokens. Kernels, schedulers and networks only add to them."
    ]
    if layer["batch_growth"] > 1:
        keys = ("batch_growth", "train_latency_ratio", "decode_latency_ratio", "decode_throughput_gain")
        growth, train, decode, gain = (digits(layer[key]) for key in keys)
        found.append(
            f"One layer: {growth} times the batch takes {train} times as long to train on and {decode} times as long "
            f"to decode, at {gain} times the tokens per second."
        )
    half, saturated = digits(whole["half_plateau_batch"]), digits(whole["saturated_batch"])
    found.append(
        f"Decoding with the whole model has a plateau of {whole['plateau_tokens_per_s']:,.0f} tokens/s, half of it at "
        f"{half} sequences, {PLATEAU_FRAC:.0%} at {saturated}; {binds}."
    )
    if whole["activation_frac"] > LARGE_ACTIVATIONS:
        found.append(
            f"Activations are {whole['activation_frac']:.0%} of the bytes that a sequence adds to a decode step, if "
            "every operator writes its output to memory; kernels that keep them on the chip can be faster (--fused)."
        )
    found.append(_memory_sentence(report["memory"]))
    if report["inferred"]:
        found.append(
            "This configuration is inferred, not published: from 1 to 32 sequences it gives the ratios that the study "
            "prints for its per-layer figure; `python -m analysis paper` compares them."
        )
    return found


def _memory_sentence(memory: dict[str, Any]) -> str:
    weights, each, usable = (memory[key] / 1e9 for key in ("weight_bytes", "kv_bytes_per_sequence", "usable_bytes"))
    text = f"Memory: weights {digits(weights)} GB, KV cache {digits(each)} GB a sequence, {digits(usable)} GB usable"
    if memory["batch_limit"]:
        share = memory["share_of_plateau_at_limit"]
        fit = "1 sequence fits" if memory["batch_limit"] == 1 else f"{memory['batch_limit']:,} sequences fit"
        return f"{text}: {fit}, which can reach {share:.0%} of the plateau."
    if weights > usable:
        return f"{text}: the weights do not fit; {memory['gpus_for_weights']} of this GPU would hold them."
    return f"{text}: the weights fit, but not one sequence beside them."
