"""Trials per minute of a real sweep with one worker and with two.

`python -m harness sweep` runs many equal, short trials of the default task; only the number of workers differs.
The rate is that of the steady state, taken from the times at which outcome.json appears: the start of Ray, of the
workers and of the warm start is left out, the driver's own work is not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.common import ROOT, Table, spread

ROUNDS = 2
WORKERS = (1, 2)
NUM_TRIALS = 12
SETTINGS = {
    "arms": "[{batch.num_prompts: 8}]",
    "seeds": str(NUM_TRIALS),
    "budget_samples": "6144",
    "timing.rounds": "0",
}


def run() -> list[Table]:
    """One worker and two, in turn."""
    question = "How many trials a minute do two workers run, against one?"
    cores = len(os.sched_getaffinity(0))
    if cores < max(WORKERS):
        return [Table(question, [], (f"Not measured: this process may use {cores} core.",))]
    with tempfile.TemporaryDirectory() as folder:
        # A sweep of one short trial makes the warm start that the measured ones share.
        _sweep(Path(folder), "start", {**SETTINGS, "seeds": "1", "budget_samples": "1024"}, 1)
        rates = [
            [_sweep(Path(folder), f"round{number}-workers{workers}", SETTINGS, workers) for workers in WORKERS]
            for number in range(ROUNDS)
        ]
    rows: list[dict[str, Any]] = [
        {"workers": workers, **spread("trials/min", [found[place] for found in rates], 3)}
        for place, workers in enumerate(WORKERS)
    ]
    ratios = [two / one for one, two in rates]
    rows[-1] |= spread("ratio", ratios, 3)
    note = (
        f"{NUM_TRIALS} trials of {SETTINGS['budget_samples']} samples at B=64, {ROUNDS} rounds in turn, {cores} cores."
    )
    return [Table(question, rows, (note + " Aim: a ratio of at least 1.8.",))]


def _sweep(results: Path, name: str, settings: dict[str, str], workers: int) -> float:
    """Run the sweep; trials a minute between the end of the first `workers` trials and the end of the last."""
    overrides = {**settings, "sweep": name, "execution.workers": str(workers)}
    arguments = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "harness", "sweep", "sweeps/default.yaml", "--results", str(results), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the sweep ended with {done.returncode}: {done.stderr or done.stdout}")
    outcomes = (results / name / "trials").glob("*/outcome.json")
    return rate(sorted(outcome.stat().st_mtime for outcome in outcomes), workers)


def rate(ends_s: list[float], workers: int) -> float:
    """Trials a minute, from the sorted times at which they ended.

    Two workers that end at 1, 1.5, 11, 11.5, 21 and 21.5 s end 4 more trials within 20 s of the second:

    >>> rate([1.0, 1.5, 11.0, 11.5, 21.0, 21.5], workers=2)
    12.0
    >>> rate([3.0], workers=1)
    nan
    """
    counted = len(ends_s) - workers
    return 60 * counted / (ends_s[-1] - ends_s[workers - 1]) if counted > 0 else float("nan")
