"""How often the 95% intervals of the analysis hold the truth, how wide they are, and the bias of N* (analysis.simulate)."""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial

from analysis.simulate import CELLS, least_coverage, simulate
from analysis.simulate_bias import BIAS_ROWS, SHARES, bias_of
from tests.bench.common import Table, significant

NUM_SWEEPS = 2000


def run() -> list[Table]:
    """Every cell, and the bias; what the simulation cannot say (NaN) stays empty."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        found = list(processes.map(partial(simulate, num_sweeps=NUM_SWEEPS), CELLS))
        biases = list(processes.map(partial(bias_of, num_trials=NUM_SWEEPS), BIAS_ROWS))
    rows = [
        asdict(cell) | {k: significant(v, 3) for k, v in asdict(coverage).items() if not math.isnan(v)}
        for cell, coverage in zip(CELLS, found, strict=True)
    ]
    least = least_coverage(NUM_SWEEPS)
    note = f"{NUM_SWEEPS} sweeps a row. Aim: 0.95; below {least:.3f} is more than the simulation's own noise."
    bias_rows = [
        asdict(bias.row)
        | {f"B/N* {share:g}": significant(mean, 2) for share, mean in zip(SHARES, bias.means, strict=True)}
        for bias in biases
    ]
    return [
        Table("Do 95% intervals hold the truth 95% of the time, and how wide are they?", rows, (note,)),
        Table("What is the bias of N*, by B / N*?", bias_rows, ("Aim: below 0.03.",)),
    ]
