"""Timing passes: what a sample costs in each phase, with nothing else running."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

from harness.config import StatisticsConfig
from harness.parts import build_parts
from harness.plan import PlannedTrial
from harness.streaming import open_intake
from harness.update import Progress, run_update

# Times are those of the policy that the trial starts from: one that a rate ruins has responses of another length.
STANDING_STILL = 1e-12


def time_arm(trial: PlannedTrial, results_dir: Path, min_seconds: float) -> dict[str, Any]:
    """One measurement of the trial's arm: real updates from its start for at least `min_seconds`.

    The first update is not counted (allocations, first calls), no gradient statistics are taken, and the policy stands
    still: its steps are made, at a rate of nothing.
    Returns counts of samples, response tokens and updates, and the seconds of each phase.
    """
    optimizer = trial.config.optimizer.model_copy(update={"lr": STANDING_STILL})
    config = trial.config.model_copy(update={"statistics": StatisticsConfig(every_samples=0), "optimizer": optimizer})
    samples = tokens = updates = 0
    seconds: dict[str, float] = {}
    with closing(build_parts(config, results_dir)) as parts:
        progress = Progress()
        intake = open_intake(parts, progress)
        run_update(parts, progress, intake)
        started_s = time.perf_counter()
        while updates == 0 or time.perf_counter() - started_s < min_seconds:
            update = run_update(parts, progress, intake)
            updates += 1
            samples += update.samples_trained
            tokens += update.tokens_trained
            for phase, spent_s in update.seconds.items():
                seconds[phase] = seconds.get(phase, 0.0) + spent_s
    return {"arm": trial.arm, "samples": samples, "tokens": tokens, "updates": updates, "seconds": seconds}
