"""Imported runs as trials of the results format: config.json, provenance.json, metrics.jsonl, outcome.json."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.importing.run import ImportedRun, Update


def config_of(run: ImportedRun) -> dict[str, Any]:
    """config.json: what is known of the run in our words, and under `imported` all that a plan is made from."""
    points: dict[str, int] = {}
    for scores in [*(one.scores for one in run.evals), *(update.scores for update in run.updates)]:
        for name in scores:
            points[name] = points.get(name, 0) + 1
    return {
        "batch": {"num_prompts": run.num_prompts, "group_size": run.group_size, "gen_batch": None},
        "algorithm": {"name": run.algorithm},
        "optimizer": {"lr": run.lr, "critic_lr": run.critic_lr},
        "budget_samples": _last(run),
        "imported": {
            "name": run.name,
            "source": str(run.source.resolve()),
            "system": run.system,
            "arm": run.arm,
            "seed": run.seed,
            "axes": dict(run.axes),
            "points": {name: points[name] for name in run.curves if name in points},
            "training_scores": sorted({name for update in run.updates for name in update.scores}),
            "fingerprint": _fingerprint(run),
            "assumptions": list(run.assumptions),
        },
    }


def write_trial(folder: Path, run: ImportedRun, config: Mapping[str, Any]) -> None:
    """Write a trial's folder anew; outcome.json last."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    records = list(records_of(run))
    provenance = {"commit": None, "imported_from": str(run.source), "system": run.system}
    last = records[-1]
    outcome = {
        name: last.get(name, 0) for name in ("samples_trained", "samples_generated", "optimizer_steps", "wall_s")
    }
    outcome |= {"status": "completed", "reason": f"the log ends at {last['samples_trained']:,} samples", "attempts": 1}
    _write(folder / "config.json", json.dumps(config, indent=1, allow_nan=False) + "\n")
    _write(folder / "provenance.json", json.dumps(provenance, indent=1) + "\n")
    _write(folder / "metrics.jsonl", "".join(json.dumps(record, allow_nan=False) + "\n" for record in records))
    _write(folder / "outcome.json", json.dumps(outcome, indent=1, allow_nan=False) + "\n")


def records_of(run: ImportedRun) -> Iterator[dict[str, Any]]:
    """The records of a run by samples_trained, at one N the update before the evaluation.

    A training score is an evaluation of the policy before its update, so it stands at samples_before. wall_s is the sum
    of the seconds so far, absent from where they are not known.
    """
    scores: dict[int, dict[str, float]] = {}
    for update in run.updates:
        scores.setdefault(update.samples_before, {}).update(update.scores)
    for one in run.evals:
        scores.setdefault(one.samples_trained, {}).update(one.scores)
    points = sorted((samples, finite) for samples, found in scores.items() if (finite := _finite(found)))
    counters: dict[str, Any] = {"samples_generated": 0, "optimizer_steps": 0, "wall_s": 0.0}
    done = 0
    for update in run.updates:
        while points and points[0][0] < update.samples_trained:
            yield _evaluation(*points.pop(0), counters)
        counters = _advance(counters, update, done)
        done = update.samples_trained
        yield _training(run, update, counters)
    for samples, found in points:
        yield _evaluation(samples, found, counters)


def _advance(counters: Mapping[str, Any], update: Update, done: int) -> dict[str, Any]:
    """The counters after an update, `done` being the samples trained before it as far as the rows tell.

    Rows that are missing in between made their optimizer steps; their seconds are not known.
    """
    generated = update.samples_trained if update.samples_generated is None else update.samples_generated
    rows = (update.samples_trained - done) / (update.samples_trained - update.samples_before)
    steps = counters["optimizer_steps"] + round(rows * update.optimizer_steps)
    found = {"samples_generated": generated, "optimizer_steps": steps}
    if "wall_s" in counters and update.seconds and update.samples_before == done:
        found["wall_s"] = counters["wall_s"] + sum(update.seconds.values()) + sum(update.apart_s.values())
    return found


def _training(run: ImportedRun, update: Update, counters: Mapping[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": "train", "samples_trained": update.samples_trained, **counters}
    record |= {"step": update.step, "num_prompts": run.num_prompts, "group_size": run.group_size}
    record["samples_before"] = update.samples_before
    record |= {"lr": update.lr, "critic_lr": update.critic_lr}
    record |= {"tokens_generated": update.tokens, "tokens_trained": update.tokens}
    record |= {"seconds": _finite(update.seconds), "seconds_apart": _finite(update.apart_s)}
    record["samples_dropped"] = counters["samples_generated"] - update.samples_trained
    known = {name: value for name, value in record.items() if value is not None}
    return known | {"metrics": _finite(update.metrics)}


def _evaluation(samples: int, scores: Mapping[str, float], counters: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": "eval", "samples_trained": samples, **counters, "metrics": dict(scores)}


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _last(run: ImportedRun) -> int:
    return max([*(update.samples_trained for update in run.updates), *(one.samples_trained for one in run.evals)])


def _fingerprint(run: ImportedRun) -> str | None:
    """The same for two logs of one run, however many digits they have; None where scores are too few to tell."""
    scores = [update.scores for update in run.updates] or [one.scores for one in run.evals]
    values = [f"{value:.3f}" for found in scores for _, value in sorted(found.items())]
    text = f"{run.train_batch} {' '.join(values)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16] if len(set(values)) > 3 else None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
