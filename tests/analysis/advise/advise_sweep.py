"""The folder of an advice whose truth is known, and what runs a proposal in it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.advise.model import FITTED
from analysis.simulate import evaluation_grid, true_score
from tests.analysis.synthetic import ArmTruth, SweepTruth, timing_line, trial_records, write_trial

# N*_ref 4,500 at B = 64, B_n = 1,000 (what its gradients show); T = r_N / q: 1, 0.64, 0.61 and 0.83.
ARMS = (
    ArmTruth(8, 1.0, 1000.0),
    ArmTruth(16, 1.06, 1650.0),
    ArmTruth(32, 1.18, 1950.0),
    ArmTruth(128, 1.9, 2300.0),
)
SIZES: dict[str, Any] = {"reference_samples": 4500.0, "every_samples": 512, "budget_samples": 12288}
TRUTH = SweepTruth(ARMS, seed_sd=0.05, with_noise_metrics=True, **SIZES)
SETTINGS = {"rates": [0.5, 1, 2], "reference_seeds": 3, "branch_points": 2}
# What another rate makes of N*.
RATES = {1e-4: 1.5, 2e-4: 1.0, 4e-4: 1.1, 8e-4: 2.0}
BASE = 2e-4


def name_of(arm: ArmTruth, rate: float) -> str:
    return f"{arm.name}-lr{rate:g}"


def begin(folder: Path, rates: tuple[float, ...] = (1e-4, 2e-4, 4e-4), **settings: Any) -> Path:
    """plan.json and advise.json alone; the first seed is 1000."""
    trials = [planned(arm, rate, seed) for seed in range(1000, 1005) for rate in rates for arm in ARMS]
    plan = {
        "format": 1,
        "sweep": folder.name,
        "question": "Which batch?",
        "reference_arm": name_of(ARMS[0], BASE),
        "target": {"metric": "eval/score", "value": TRUTH.target},
        "trials": trials,
    }
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    names = {"branches": f"{folder.name}-branches", "speed": None}
    (folder / "advise.json").write_text(json.dumps({"format": 1, **SETTINGS, **names, **settings}))
    return folder


def planned(arm: ArmTruth, rate: float, seed: int) -> dict[str, Any]:
    axes = {
        "algorithm": "grpo",
        "num_prompts": arm.num_prompts,
        "group_size": arm.group_size,
        "train_batch": arm.train_batch,
        "lr": rate * math.sqrt(arm.train_batch / ARMS[0].train_batch),
        "lr_rule": "sqrt",
        "lr_ref": rate,
    }
    config = {
        "budget_samples": TRUTH.budget_samples,
        "optimizer": {"lr_ref": rate},
        "execution": {"mode": "synchronous"},
    }
    name = name_of(arm, rate)
    return {"trial_id": f"{name}-s{seed}", "arm": name, "seed": seed, "axes": axes, "config": config}


def carry_out(folder: Path, item: dict[str, Any], truth: SweepTruth = TRUTH, rates: dict[float, float] = RATES) -> None:
    """What the harness would do."""
    plan = json.loads((folder / "plan.json").read_text())
    if item["do"] == "time":
        rng = np.random.default_rng(5)
        by_name = {trial["arm"]: arm_of(trial) for trial in plan["trials"]}
        lines = [
            timing_line(by_name[arm], number, truth, rng) | {"arm": arm}
            for number in range(1, 1 + item.get("rounds", 5))
            for arm in item["arms"]
        ]
        (folder / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return
    trial = next(t for t in plan["trials"] if t["arm"] == item["arm"] and t["seed"] == item["seed"])
    arm, rng = arm_of(trial), np.random.default_rng([item["seed"], trial["axes"]["train_batch"]])
    slower = rates[trial["axes"]["lr_ref"]]
    if item["do"] == "run":
        records = trial_records(replace(arm, r_N=arm.r_N * slower), truth, rng)
        write_trial(folder / "trials" / trial["trial_id"], records)
    else:
        branch(folder, item, trial, arm, truth)


def arm_of(trial: dict[str, Any]) -> ArmTruth:
    return next(arm for arm in ARMS if arm.num_prompts == trial["axes"]["num_prompts"])


def branch(folder: Path, item: dict[str, Any], trial: dict[str, Any], arm: ArmTruth, truth: SweepTruth) -> None:
    """Its scores are those of the reference's curve, r_N times slower from at_samples on and as much as all branches."""
    beside = folder.parent / f"{folder.name}-branches"
    begun = item["at_samples"]
    told = {name: item[name] for name in ("trial", "at_samples", "moments", "noise_scale")}
    config = trial["config"] | {"branch": told, "budget_samples": item["budget_samples"]}
    name = f"{trial['arm']}-b{begun}"
    own = {**trial, "trial_id": f"{name}-s{item['seed']}", "arm": name, "config": config}
    own["axes"] = trial["axes"] | {"branch_of": trial["arm"], "branch_at": begun}
    path = beside / "plan.json"
    plan = json.loads((folder / "plan.json").read_text()) | {"sweep": beside.name, "trials": [], "reference_arm": name}
    plan = json.loads(path.read_text()) if path.exists() else plan
    beside.mkdir(exist_ok=True)
    path.write_text(json.dumps(plan | {"trials": [*plan["trials"], own]}))
    later = evaluation_grid(arm.train_batch, 256, item["samples"])
    progress = (begun + later / (arm.r_N * math.exp(FITTED.branch_shift))) / truth.reference_samples
    records = [
        {
            "kind": "eval",
            "samples_trained": int(begun + gone),
            "samples_generated": int(begun + gone),
            "optimizer_steps": int(gone / arm.train_batch),
            "wall_s": 1.0,
            "metrics": {"eval/score": float(score)},
        }
        for gone, score in zip(later, true_score(progress), strict=True)
    ]
    write_trial(beside / "trials" / own["trial_id"], records)
