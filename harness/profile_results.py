"""From the measurements of a profile to its curves: rates with intervals, the knee of each curve, the memory limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from harness.knee import knee, log_mean
from harness.plan import PlannedTrial

# Along these a curve runs, and a rate of learning has no part in speed; arms that differ in anything else make curves
# of their own.
ALONG = {"num_prompts", "train_batch", "batch.gen_batch"}
OF_LEARNING = {"lr", "lr_rule", "lr_ref", "critic_lr", "critic_lr_rule"}
PHASES = ("generate", "train")
Line = Mapping[str, Any]


def curves(lines: Sequence[Line], arms: Sequence[PlannedTrial]) -> list[dict[str, Any]]:
    """A curve for each phase of the arms that differ in their batch alone, in the order of the arms."""
    found = []
    for phase in PHASES:
        families: dict[str, list[PlannedTrial]] = {}
        for arm in arms:
            families.setdefault(repr(sorted(family(arm).items())), []).append(arm)
        for members in families.values():
            points = [_point(phase, arm, own) for arm in members if (own := _of(lines, phase, arm.arm))]
            if points:
                found.append(_curve(phase, members[0], points))
    return found


def family(arm: PlannedTrial) -> dict[str, Any]:
    """What tells an arm from others beside its batch and its learning rate."""
    return {name: value for name, value in arm.axes.items() if name not in ALONG | OF_LEARNING}


def loosest(found: Iterable[Mapping[str, Any]]) -> tuple[float, str]:
    """The largest half-width of all points, infinite where one was measured once, and which point has it."""
    widest = math.inf, "nothing"
    for curve in found:
        for point in curve["points"]:
            width = point["responses_per_s"]["half_width"]
            own = math.inf if width is None else width, f"{point['arm']}, {curve['phase']}"
            widest = own if widest[1] == "nothing" else max(widest, own)
    return widest


def _of(lines: Sequence[Line], phase: str, arm: str) -> list[Line]:
    """The measurements of one arm, by round; the last of a round counts."""
    by_round = {line["round"]: line for line in lines if line["phase"] == phase and line["arm"] == arm}
    return [by_round[number] for number in sorted(by_round)]


def _point(phase: str, arm: PlannedTrial, lines: Sequence[Line]) -> dict[str, Any]:
    seconds_R = [line["seconds"][phase] for line in lines]
    point: dict[str, Any] = {
        "arm": arm.arm,
        "num_prompts": arm.config.batch.num_prompts,
        "train_batch": arm.config.batch.train_batch,
        "rounds": len(lines),
    }
    for name in ("responses", "tokens"):
        rates_R = [line[name] / seconds for line, seconds in zip(lines, seconds_R, strict=True)]
        point[f"{name}_per_s"] = log_mean(rates_R).as_json() | {"each": rates_R}
    if phase == "train":
        each = {name: fmean(line["seconds"][name] / line["batches"] for line in lines) for name in ("reward", "sync")}
        return point | {"micro_batch": lines[-1]["micro_batch"], "seconds_beside": each}
    engine = {
        name: fmean(line["engine"][name] for line in lines) for name in ("in_flight_mean", "busy_frac", "tail_frac")
    }
    return point | {
        "in_flight": lines[-1]["engine"]["places"],
        **engine,
        "response_tokens": {name: fmean(line["response_tokens"][name] for line in lines) for name in ("mean", "p95")}
        | {"max": max(line["response_tokens"]["max"] for line in lines)},
        "prompt_tokens_mean": fmean(line["prompt_tokens_mean"] for line in lines),
        "startup_s": fmean(line["startup_s"] for line in lines),
        "memory": lines[-1]["memory"],
    }


def _curve(phase: str, first: PlannedTrial, points: list[dict[str, Any]]) -> dict[str, Any]:
    along = "in_flight" if phase == "generate" else "train_batch"
    points.sort(key=lambda point: (point[along], point["train_batch"]))
    batch_A = sorted({point[along] for point in points})
    rounds = min(point["rounds"] for point in points)
    # The last rounds: every arm has those. Arms with the same batch count as one.
    logs_RA = np.column_stack([
        np.mean([np.log(p["responses_per_s"]["each"][-rounds:]) for p in points if p[along] == batch], axis=0)
        for batch in batch_A
    ])  # fmt: skip
    at = knee(batch_A, np.exp(logs_RA))
    found = {
        "phase": phase,
        "family": family(first),
        "along": along,
        "knee": at.as_json() if at else None,
        "points": points,
    }
    if phase == "generate":
        found["memory_limit"] = points[-1]["memory"]
    return found
