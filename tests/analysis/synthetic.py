"""Writes sweeps in the results format whose truth is known: N*, gradient noise, throughput, spread over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.simulate import evaluation_grid, true_score


@dataclass(frozen=True)
class ArmTruth:
    """One arm and what is true of it: N* = r_N * reference N*, throughput, the share of generation in its time."""

    num_prompts: int
    r_N: float = 1.0
    samples_per_s: float = 1000.0
    lr_rule: str = "sqrt"
    group_size: int = 8
    generate_share: float = 0.5

    @property
    def train_batch(self) -> int:
        return self.num_prompts * self.group_size

    @property
    def name(self) -> str:
        return f"P{self.num_prompts}-G{self.group_size}-{self.lr_rule}"


@dataclass(frozen=True)
class SweepTruth:
    """What a synthetic sweep holds. Standard deviations of seeds and clocks are on the log scale."""

    arms: Sequence[ArmTruth]
    reference_samples: float = 9000.0
    num_seeds: int = 5
    seed_sd: float = 0.1
    eval_sd: float = 0.005
    clock_sd: float = 0.03
    noise_scale: float = 1000.0
    every_samples: int = 1024
    budget_samples: int = 24576
    timing_rounds: int = 5
    target: float = 0.7
    with_noise_metrics: bool = False


STUDY = SweepTruth(
    [
        ArmTruth(8, 1.0, 1300),
        ArmTruth(2, 0.9, 500),
        ArmTruth(32, 1.1, 2400),
        ArmTruth(128, 1.75, 2500, generate_share=0.25),
        ArmTruth(512, 4.0, 2600, generate_share=0.25),
        ArmTruth(32, 1.75, 2400, lr_rule="fixed"),
    ]
)


def write_sweep(folder: Path, truth: SweepTruth = STUDY, seed: int = 0) -> Path:
    """Write the whole sweep; the first arm is the reference. Returns the folder."""
    rng = np.random.default_rng(seed)
    reference = truth.arms[0]
    planned = [_planned(arm, reference, truth, number) for number in range(truth.num_seeds) for arm in truth.arms]
    plan = {
        "format": 1,
        "sweep": folder.name,
        "question": "Which batch reaches the target first?",
        "reference_arm": reference.name,
        "target": {"metric": "eval/score", "value": truth.target},
        "trials": planned,
    }
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    for trial, arm in zip(planned, list(truth.arms) * truth.num_seeds, strict=True):
        write_trial(folder / "trials" / trial["trial_id"], trial_records(arm, truth, rng))
    lines = [timing_line(arm, number, truth, rng) for number in range(truth.timing_rounds + 1) for arm in truth.arms]
    if truth.timing_rounds:
        (folder / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_trial(directory: Path, records: list[dict[str, Any]], status: str = "completed") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (directory / "config.json").write_text("{}")
    (directory / "provenance.json").write_text(json.dumps({"commit": "0" * 40}))
    last = max(records, key=lambda record: record["samples_trained"]) if records else {}
    counters = ("samples_trained", "samples_generated", "optimizer_steps", "wall_s")
    outcome = {name: last.get(name, 0) for name in counters} | {"status": status, "reason": status, "attempts": 1}
    (directory / "outcome.json").write_text(json.dumps(outcome))


def trial_records(arm: ArmTruth, truth: SweepTruth, rng: np.random.Generator) -> list[dict[str, Any]]:
    """The records of one trial in the order a trial writes them."""
    samples_to_target = truth.reference_samples * arm.r_N * math.exp(truth.seed_sd * rng.standard_normal())
    grid = evaluation_grid(arm.train_batch, truth.every_samples, truth.budget_samples)
    scores = true_score(grid / samples_to_target) + truth.eval_sd * rng.standard_normal(len(grid))
    evals = dict(zip(grid.tolist(), scores.tolist(), strict=True))
    records = [_record("eval", 0, arm, 0.0, {"eval/score": evals[0], "eval/score_se": truth.eval_sd})]
    wall_s = 0.0
    for step in range(1, -(-truth.budget_samples // arm.train_batch) + 1):
        seconds = _seconds(arm, arm.train_batch, math.exp(truth.clock_sd * rng.standard_normal()))
        wall_s += sum(seconds.values())
        extra = {
            "step": step,
            "num_prompts": arm.num_prompts,
            "group_size": arm.group_size,
            "lr": 1e-3,
            "tokens_generated": 7 * arm.train_batch,
            "tokens_trained": 7 * arm.train_batch,
            "seconds": seconds,
            "samples_dropped": 0,
            "samples_in_flight": 0,
        }
        records.append(_record("train", step, arm, wall_s, _gradient(arm, truth, rng)) | extra)
        if step * arm.train_batch in evals:
            score = {"eval/score": evals[step * arm.train_batch], "eval/score_se": truth.eval_sd}
            records.append(_record("eval", step, arm, wall_s, score))
    return records


def timing_line(arm: ArmTruth, number: int, truth: SweepTruth, rng: np.random.Generator) -> dict[str, Any]:
    """One measurement; round 0, a warm-up, is ten times too slow."""
    slow = math.exp(truth.clock_sd * rng.standard_normal()) * (10 if number == 0 else 1)
    samples = arm.train_batch * 4
    seconds = _seconds(arm, samples, slow)
    return {
        "round": number,
        "arm": arm.name,
        "samples": samples,
        "tokens": 7 * samples,
        "updates": 4,
        "seconds": seconds,
    }


def _planned(arm: ArmTruth, reference: ArmTruth, truth: SweepTruth, number: int) -> dict[str, Any]:
    axes = {
        "algorithm": "grpo",
        "num_prompts": arm.num_prompts,
        "group_size": arm.group_size,
        "train_batch": arm.train_batch,
        "lr": 3e-4 * (math.sqrt(arm.train_batch / reference.train_batch) if arm.lr_rule == "sqrt" else 1),
        "lr_rule": arm.lr_rule,
    }
    config = {"budget_samples": truth.budget_samples, "batch": {"gen_batch": None}}
    return {"trial_id": f"{arm.name}-s{number}", "arm": arm.name, "seed": number, "axes": axes, "config": config}


def _record(kind: str, step: int, arm: ArmTruth, wall_s: float, metrics: dict[str, float]) -> dict[str, Any]:
    samples = step * arm.train_batch
    counters = {"samples_trained": samples, "samples_generated": samples, "optimizer_steps": step, "wall_s": wall_s}
    return {"kind": kind, **counters, "metrics": metrics}


def _gradient(arm: ArmTruth, truth: SweepTruth, rng: np.random.Generator) -> dict[str, float]:
    """|G| = 1: E |g|^2 = 1 + B_noise / B, with 10% noise on the norm of an update."""
    norm = math.sqrt(1 + truth.noise_scale / arm.train_batch) * math.exp(0.1 * rng.standard_normal())
    metrics = {"grad/actor_norm": norm, "reward/mean": 0.5}
    if truth.with_noise_metrics:
        metrics["grad/noise_trace"] = truth.noise_scale * (1 + 0.3 * rng.standard_normal())
        metrics["grad/signal_sq"] = 1 + 0.5 * rng.standard_normal()
    return metrics


def _seconds(arm: ArmTruth, samples: int, slow: float) -> dict[str, float]:
    total = slow * samples / arm.samples_per_s
    generate, train = arm.generate_share * total, (0.98 - arm.generate_share) * total
    return {"generate": generate, "reward": 0.01 * total, "train": train, "sync": 0.01 * total}
