"""Seconds that `python -m analysis report` takes on synthetic sweeps of 250 and of 1,000 trials.

The command runs whole, imports included. Both sweeps have the same 25 arms; the larger one has four times the seeds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.analysis.synthetic import ArmTruth, SweepTruth, write_sweep
from tests.bench.common import ROOT, Table, significant, spread

ROUNDS = 2
NUM_SEEDS = (10, 40)
RULES = ("sqrt", "fixed", "linear", "adam_sde", "surge")
ARMS = [ArmTruth(num_prompts, lr_rule=rule) for rule in RULES for num_prompts in (8, 2, 4, 16, 32)]
BUDGET_SAMPLES = 20480


def run() -> list[Table]:
    """Both sizes, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [_written(Path(folder) / f"seeds{number}", number) for number in NUM_SEEDS]
        rounds = [[_report(Path(folder) / f"seeds{number}") for number in NUM_SEEDS] for _ in range(ROUNDS)]
    for place, row in enumerate(rows):
        row |= spread("seconds", [seconds[place] for seconds in rounds], 3)
    rows[-1] |= spread("ratio", [seconds[-1] / seconds[0] for seconds in rounds], 3)
    note = "Aim: under 60 s for 1,000 trials, and linear: a ratio of at most 4."
    return [Table("How long does a report take?", rows, (note,))]


def _written(folder: Path, num_seeds: int) -> dict[str, Any]:
    write_sweep(folder, SweepTruth(ARMS, num_seeds=num_seeds, budget_samples=BUDGET_SAMPLES))
    logs = list((folder / "trials").glob("*/metrics.jsonl"))
    records = sum(log.read_bytes().count(b"\n") for log in logs)
    return {"trials": len(logs), "records per trial": significant(records / len(logs), 3)}


def _report(folder: Path) -> float:
    started_s = time.perf_counter()
    command = [sys.executable, "-m", "analysis", "report", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the report ended with {done.returncode}: {done.stderr or done.stdout}")
    return time.perf_counter() - started_s
