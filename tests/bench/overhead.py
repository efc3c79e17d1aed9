"""Where the time of a whole trial goes, and how much of it is not the model.

A trial of sweeps/default.yaml runs as it does in a sweep (records, W&B offline, evaluations, checkpoints) in a
process with one thread; functions are timed from outside (tests.bench.self_times), the product knows nothing
of it. Overhead is everything in the trial's wall time but the model's forward and backward passes and the
optimizer's step: what evaluation does around its forward passes is overhead, a backward pass that measures the
gradient's noise is not. The start (imports, model, W&B) and the end of a trial are no part of its wall time and
are shown beside it.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness.trial import run_trial
from tests.bench.common import RESULTS, TRAIN_BATCHES, Table, default_trial, significant
from tests.bench.self_times import SelfTimes

MODEL = ("forward, sampling", "forward, training", "backward", "optimizer step", "evaluation: forward")
EVALUATION = "evaluation: the rest"
FORWARD = "transformers:LlamaForCausalLM.forward"
# Where each is defined. Whatever is not named here counts to what called it, or to "other".
HOMES = {
    "harness.tasks.digits:DigitTask.train_prompt": "prompts",
    "harness.seeds:uniforms": "draws",
    "harness.rollout.transformers:draw_tokens": "draws",
    "harness.rollout.transformers:TransformersEngine.generate": "sampling, around forward and draws",
    "transformers:DynamicCache.batch_select_indices": "cache rows selected",
    "harness.evaluation:score_groups": "text and reward",
    "harness.training.batch:make_train_batch": "packing",
    "harness.training.packing:pack_rows": "packing",
    "harness.training.packing:token_logits": "packing",
    "harness.training.packing:attention_mask": "packing",
    "harness.training.torch:TorchTrainer.step": "loss, norm, statistics",
    "torch:Tensor.backward": "backward",
    "torch.optim:Adam.step": "optimizer step",
    "harness.tracking.jsonl:JsonlSink.write": "records",
    "harness.tracking.wandb_sink:WandbSink.write": "W&B",
    "harness.tracking.jsonl:JsonlSink.sync": "checkpoint",
    "harness.run_dir:RunDir.save_checkpoint": "checkpoint",
}


def run() -> list[Table]:
    """The parts of a trial at each batch."""
    torch.set_num_threads(1)
    parts = {train_batch: measure(train_batch) for train_batch in TRAIN_BATCHES}
    names = sorted({name for seconds in parts.values() for name in seconds}, key=_order)
    rows = [_row(name, {batch: seconds.get(name, 0.0) for batch, seconds in parts.items()}, parts) for name in names]
    outside = {batch: sum(s for name, s in found.items() if _is_overhead(name)) for batch, found in parts.items()}
    rows.append(_row("OUTSIDE forward, backward and optimizer", outside, parts))
    training = {batch: _without_evaluation(found) for batch, found in parts.items()}
    outside = {batch: sum(s for name, s in found.items() if _is_overhead(name)) for batch, found in training.items()}
    rows.append(_row("the same with evaluation left out of both", outside, training))
    return [
        Table(
            "How much of a trial's wall time is not the model? (one thread)",
            rows,
            ("Aim: below 15% outside. Each time is a function's own, without what it calls that has a row.",),
        )
    ]


def measure(train_batch: int) -> dict[str, float]:
    """Seconds of each part of one trial; together its wall time, but for "start and end"."""
    times, planned = SelfTimes(), default_trial(train_batch)
    homes: dict[str, str | Callable[[], str]] = {home: _in(times, name) for home, name in HOMES.items()}
    homes |= {FORWARD: _in(times, _forward), "harness.evaluation:evaluate": EVALUATION}
    with tempfile.TemporaryDirectory() as folder, times.patched(homes):
        directory = Path(folder) / "overhead" / "trials" / planned.trial_id
        started_s = time.perf_counter()
        for _ in run_trial(planned, directory, RESULTS):
            pass
        total_s = time.perf_counter() - started_s
        wall_s = json.loads((directory / "outcome.json").read_text())["wall_s"]
    seconds = dict(times.seconds)
    return {**seconds, "other": wall_s - sum(seconds.values()), "start and end": total_s - wall_s}


def _forward() -> str:
    return MODEL[1] if torch.is_grad_enabled() else MODEL[0]


def _in(times: SelfTimes, name: str | Callable[[], str]) -> Callable[[], str]:
    """The label of a part: its own in an update, one of evaluation's two while evaluating."""

    def label() -> str:
        if times.is_open(EVALUATION):
            return MODEL[4] if callable(name) else EVALUATION
        return name() if callable(name) else name

    return label


def _is_overhead(name: str) -> bool:
    return name not in (*MODEL, "start and end")


def _without_evaluation(seconds: dict[str, float]) -> dict[str, float]:
    return {name: spent_s for name, spent_s in seconds.items() if not name.startswith("evaluation")}


def _order(name: str) -> tuple[int, str]:
    """The model first, then what is around it; what comes last has no place in the wall time."""
    if name in MODEL:
        return MODEL.index(name), name
    return {EVALUATION: 101, "other": 102, "start and end": 103}.get(name, 100), name


def _row(name: str, seconds: dict[int, float], parts: dict[int, dict[str, float]]) -> dict[str, Any]:
    """Seconds, and their share of the wall time that `parts` add up to."""
    row: dict[str, Any] = {"part": name}
    for batch, spent_s in seconds.items():
        wall_s = sum(s for part, s in parts[batch].items() if part != "start and end")
        row[f"B={batch} s"] = significant(spent_s, 3)
        row[f"B={batch} %"] = None if name == "start and end" else round(100 * spent_s / wall_s, 1)
    return row
