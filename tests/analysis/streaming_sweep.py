"""A synthetic sweep with arms that stream: what is in flight, the age of the tokens, what was dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep

# Name of an arm -> (P, in flight as a multiple of B or None for taking turns, correction, mean age in updates).
ARMS: Mapping[str, tuple[int, int | None, str, float]] = {
    "turns8": (8, None, "none", 0.0),
    "once8": (8, 1, "none", 1.0),
    "twice8": (8, 2, "none", 2.0),
    "corrected8": (8, 2, "truncated", 2.0),
    "turns32": (32, None, "none", 0.0),
    "twice32": (32, 2, "none", 1.5),
}


def write_streaming(folder: Path, cost: float, num_seeds: int = 3, seed_sd: float = 0.02) -> Path:
    """Each update of age multiplies N* by `cost`."""
    truths = [ArmTruth(p, cost**age, 1000 * (1 if ratio is None else 1.5)) for p, ratio, _, age in ARMS.values()]
    # A sweep of arms whose names do not tell them apart, so one after another.
    truth = SweepTruth(truths, num_seeds=num_seeds, seed_sd=seed_sd, eval_sd=0.001, timing_rounds=0)
    trials: list[dict[str, Any]] = []
    for place, (name, (_, ratio, correction, age)) in enumerate(ARMS.items()):
        part = SweepTruth([truths[place]], **{k: v for k, v in vars(truth).items() if k != "arms"})
        written = write_sweep(folder.parent / f"{folder.name}_{name}", part, seed=place)
        plan = json.loads((written / "plan.json").read_text())
        for trial in plan["trials"]:
            batch, old = trial["axes"]["train_batch"], trial["trial_id"]
            mode = "synchronous" if ratio is None else "streaming"
            gen_batch = None if ratio is None else ratio * batch
            trial |= {"arm": name, "trial_id": f"{name}-s{trial['seed']}"}
            trial["axes"] |= {"execution.mode": mode, "batch.gen_batch": gen_batch, "algorithm.correction": correction}
            trial["config"] = {"budget_samples": truth.budget_samples, "batch": {"gen_batch": gen_batch}}
            trial["config"] |= {"execution": {"mode": mode}, "algorithm": {"correction": correction}}
            target = folder / "trials" / trial["trial_id"]
            target.parent.mkdir(parents=True, exist_ok=True)
            (written / "trials" / old).rename(target)
            if ratio is not None:
                _age(target / "metrics.jsonl", age, batch)
        trials += plan["trials"]
    (folder / "plan.json").write_text(json.dumps(plan | {"reference_arm": "turns8", "trials": trials}))
    return folder


def _age(path: Path, age: float, batch: int) -> None:
    """Odd updates: 1 token a sample, of age 0. Even ones: 2 tokens, of 1.5 `age`, and as many samples dropped."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        if record["kind"] == "train":
            even = record["step"] % 2 == 0
            record["tokens_trained"] = (2 if even else 1) * batch
            own = 1.5 * age if even else 0.0
            record["metrics"] |= {"policy/staleness_updates_mean": own, "policy/staleness_updates_max": 2 * own}
            record["metrics"] |= {"policy/staleness_samples_mean": own * batch}
            record["metrics"] |= {"policy/staleness_samples_max": 2 * own * batch}
            record["samples_dropped"] = batch if even else 0
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
