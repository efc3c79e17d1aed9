"""What a trial will cost, from rates measured earlier. Nothing is measured here."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from harness.config import TrialConfig
from harness.errors import InputError
from harness.plan import Plan

# Core-seconds per sample by train_batch.
Rates = dict[int, float]


def measured_rates(plan: Plan, sweep_dir: Path, reference_dir: Path) -> tuple[Rates, str]:
    """Core-seconds per sample of this algorithm, model and task, and the file they come from ("" if there is none).

    The sweep's own timing passes come first, then the committed reports below `reference_dir`; each counts
    only if the plan.json beside it has the same.
    """
    workload = _workload(plan.trials[0].config)
    sources = [sweep_dir / "timing.jsonl", *sorted(reference_dir.glob("*/report.json"))]
    for source in sources:
        earlier = _plan_beside(source)
        if earlier is None or _workload(earlier.trials[0].config) != workload:
            continue
        rates = _from_timing(source, earlier) if source.suffix == ".jsonl" else _from_report(source, earlier)
        if rates:
            return rates, str(source)
    return {}, ""


def cost_core_s(config: TrialConfig, rates: Rates) -> float | None:
    """samples * core-seconds per sample at the nearest measured batch on the log scale; None without rates."""
    if not rates:
        return None
    train_batch = config.batch.train_batch
    nearest = min(rates, key=lambda measured: abs(math.log(measured / train_batch)))
    return config.num_rollout_batches * train_batch * rates[nearest]


def _workload(config: TrialConfig) -> tuple[str, str, str]:
    """What the cost of a sample depends on, beside the batch."""
    return (
        config.algorithm.name,
        config.model.model_dump_json(exclude={"seed", "warm_start"}),
        config.task.model_dump_json(),
    )


def _plan_beside(source: Path) -> Plan | None:
    try:
        plan = Plan.from_json((source.parent / "plan.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, InputError):
        return None
    return plan if plan.trials and source.is_file() else None


def _from_timing(source: Path, plan: Plan) -> Rates:
    """Sum of seconds over sum of samples for each batch, times the threads a worker had."""
    arms = {trial.arm: trial.config for trial in plan.trials}
    seconds: dict[int, float] = defaultdict(float)
    samples: dict[int, float] = defaultdict(float)
    for row in _rows(source):
        config = arms.get(row["arm"])
        if config is not None:
            seconds[config.batch.train_batch] += sum(row["seconds"].values()) * config.execution.threads
            samples[config.batch.train_batch] += row["samples"]
    return {batch: seconds[batch] / samples[batch] for batch in samples if samples[batch] > 0}


def _rows(source: Path) -> Iterator[dict]:
    """The whole lines of a timing file; an unfinished last one is passed over."""
    for line in source.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and {"arm", "seconds", "samples"} <= row.keys():
            yield row


def _from_report(source: Path, plan: Plan) -> Rates:
    try:
        arms = json.loads(source.read_text(encoding="utf-8"))["arms"]
        rates = {arm["train_batch"]: (arm.get("throughput") or {}).get("samples_per_s") for arm in arms}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    threads = plan.trials[0].config.execution.threads
    return {batch: threads / rate for batch, rate in rates.items() if rate}
