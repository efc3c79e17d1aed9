"""How often the 95% intervals of the analysis hold the truth, over simulated sweeps in every setting (analysis.simulate)."""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial

from analysis.simulate import CELLS, simulate
from tests.bench.common import Table, significant

NUM_SWEEPS = 2000


def run() -> list[Table]:
    """Every cell; what the simulation cannot say (NaN) stays empty."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        found = list(processes.map(partial(simulate, num_sweeps=NUM_SWEEPS), CELLS))
    rows = [
        asdict(cell) | {k: significant(v, 3) for k, v in asdict(coverage).items() if not math.isnan(v)}
        for cell, coverage in zip(CELLS, found, strict=True)
    ]
    least = 0.95 - 3 * math.sqrt(0.95 * 0.05 / NUM_SWEEPS)
    note = f"{NUM_SWEEPS} sweeps a row. Aim: 0.95; below {least:.3f} is more than the simulation's own noise."
    return [Table("Do 95% intervals hold the truth 95% of the time?", rows, (note,))]
