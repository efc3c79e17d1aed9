"""What a profile measures of one arm, in a worker: generation and training as in a trial, under frozen weights."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.config import StatisticsConfig, TrialConfig
from harness.members import call_all
from harness.memory import MemoryWatch, Room, machine_memory_bytes, together
from harness.models import load_tokenizer, policy_config
from harness.parts import Parts, build_parts
from harness.plan import PlannedTrial
from harness.provenance import provenance
from harness.rollout.intake import Intake
from harness.rollout.occupancy import Occupancy
from harness.rollout.replicas import EngineReplicas
from harness.steps import train
from harness.streaming import open_intake
from harness.tasks import make_task
from harness.types import RolloutGroup, ScoredGroups
from harness.update import Progress, Stopwatch, count_tokens, generate, lengths, reward
from harness.warm_start import start_folder

PROMPTS_OF_A_ROUND = 2**20
PEAK_SECONDS = 1.0


def measure_arm(trial: PlannedTrial, results_dir: Path, round_: int, min_seconds: float) -> Iterator[dict[str, Any]]:
    """Two measurements: the phase `generate`, then `train` on what was generated last.

    Both are repeated for at least `min_seconds`, after one time that does not count (in mode streaming, after every
    place in flight was taken anew). Each round has prompts of its own. The learning rate is 0: optimizer steps cost
    what they cost and move no weight.
    """
    config = trial.config.model_copy(update={"statistics": StatisticsConfig(every_samples=0)})
    started_s = time.perf_counter()
    with closing(build_parts(config, results_dir)) as parts:
        startup_s = time.perf_counter() - started_s
        room_for = watch_memory(parts)
        progress = Progress(prompts_used=round_ * PROMPTS_OF_A_ROUND)
        intake = open_intake(parts, progress)
        found, groups = generation(parts, progress, intake, min_seconds)
        room = room_for(found["engine"]["places"])
        memory = {"responses": room.responses, "source": room.source}
        yield {"arm": trial.arm, "phase": "generate", **found, "memory": memory, "startup_s": startup_s}
        with intake.paused() if intake else nullcontext():
            yield {"arm": trial.arm, "phase": "train", **training(parts, groups, min_seconds)}


def generation(
    parts: Parts, progress: Progress, intake: Intake | None, min_seconds: float
) -> tuple[dict[str, Any], list[RolloutGroup]]:
    """Rollout batches one after another with nothing between them; the last of them, too."""
    num_prompts, shape = parts.config.batch.num_prompts, parts.config.batch_shape
    occupancy = Occupancy(0)

    def rollout_batch() -> list[RolloutGroup]:
        nonlocal occupancy
        if intake is not None:
            return intake.take(num_prompts, 0)[0]
        groups = generate(parts, progress.prompts_used, num_prompts)
        progress.prompts_used += num_prompts
        occupancy = parts.engine.occupancy if not occupancy.places else occupancy.then(parts.engine.occupancy)
        return groups

    for _ in range(1 if intake is None else 1 + -(-shape.gen_batch // shape.train_batch)):
        rollout_batch()
    if intake is not None:
        intake.usage()
    occupancy, watch = Occupancy(0), Stopwatch()
    batches: list[list[RolloutGroup]] = []
    while sum(watch.seconds.values()) < min_seconds or not batches:
        with watch.phase("generate"):
            batches.append(rollout_batch())
    measured = [group for batch in batches for group in batch]
    lengths_S = [len(rollout.token_ids_T) for group in measured for rollout in group.rollouts]
    found = {
        "batches": len(batches),
        "responses": len(lengths_S),
        "tokens": sum(lengths_S),
        "seconds": watch.seconds,
        "engine": occupancy.as_json(watch.seconds["generate"]) if intake is None else intake.usage(),
        "response_tokens": lengths(lengths_S),
        "prompt_tokens_mean": float(np.mean([len(group.prompt_ids_L) for group in measured])),
    }
    return found, batches[-1]


def training(parts: Parts, groups: list[RolloutGroup], min_seconds: float) -> dict[str, Any]:
    """Scores, optimizer steps and weights to the engine, on the same rollout batch again and again."""

    def update(watch: Stopwatch) -> ScoredGroups:
        with watch.phase("reward"):
            scored = reward(parts, groups)
        with watch.phase("train"):
            train(parts, scored, 0.0, None if parts.critic is None else 0.0, 0, 0)
        with watch.phase("sync"):
            parts.engine.update_weights(parts.trainer.weights(), 0)
        return scored

    trained = update(Stopwatch())
    watch, batches = Stopwatch(), 0
    while watch.seconds.get("train", 0.0) < min_seconds or not batches:
        update(watch)
        batches += 1
    return {
        "batches": batches,
        "responses": trained.rewards_PG.size * batches,
        "tokens": count_tokens(trained.sampled) * batches,
        "seconds": watch.seconds,
        "micro_batch": parts.config.batch_shape.micro,
    }


def watch_memory(parts: Parts) -> Callable[[int], Room]:
    """From now on. What it returns says how many responses fit, after work on so many."""
    if not isinstance(parts.engine, EngineReplicas):
        return MemoryWatch().room
    members = parts.engine.members
    call_all(members, "watch_memory")
    return lambda in_flight: together(call_all(members, "room", max(1, in_flight // members.size)))


def describe(config: TrialConfig, results_dir: Path) -> dict[str, Any]:
    """The machine, with peaks measured on it in the model's type of numbers, and the model's own configuration."""
    tokenizer = load_tokenizer(config.model, make_task(config.task).alphabet)
    model = policy_config(config.model, tokenizer, start_folder(config, results_dir))
    on_gpu, dtype = torch.cuda.is_available(), getattr(torch, config.model.dtype)
    hardware = provenance()["hardware"]
    return {
        "machine": {
            "device": torch.cuda.get_device_name() if on_gpu else hardware["cpu"] or platform.machine(),
            "on_gpu": on_gpu,
            "threads": torch.get_num_threads(),
            "logical_cpus": hardware["logical_cpus"],
            "dtype": config.model.dtype,
            "matmul_flop_per_s": matmul_flop_per_s(8192 if on_gpu else 512, dtype),
            "copy_bytes_per_s": copy_bytes_per_s(2**30 if on_gpu else 2**27),
            "memory_bytes": torch.cuda.get_device_properties(0).total_memory if on_gpu else machine_memory_bytes(),
        },
        "model": model.to_dict(),
    }


def matmul_flop_per_s(size: int, dtype: torch.dtype) -> float:
    """2 size^3 over the fastest product of two square matrices."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = torch.ones(2, size, size, dtype=dtype, device=device)
    return 2 * size**3 / _fastest_s(lambda: torch.mm(a, b))


def copy_bytes_per_s(size_bytes: int) -> float:
    """Bytes read and written over the fastest copy of so many bytes."""
    source = torch.ones(size_bytes, dtype=torch.uint8, device="cuda" if torch.cuda.is_available() else "cpu")
    target = torch.empty_like(source)
    return 2 * size_bytes / _fastest_s(lambda: target.copy_(source))


def _fastest_s(work: Callable[[], object]) -> float:
    work()
    watches: list[float] = []
    while sum(watches) < PEAK_SECONDS:
        watch = Stopwatch()
        with watch.phase("work"):
            work()
        watches.append(watch.seconds["work"])
    return min(watches)
