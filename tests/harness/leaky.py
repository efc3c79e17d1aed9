"""A real sweep of two trials: python -m tests.harness.leaky RESULTS. One of them leaks every key it can find.

It stands in for code that breaks badly: keys of the environment in its output, its warnings and its traceback.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from harness.plan import PlannedTrial
from harness.sweep import WorkerFunctions, run_sweep
from harness.trial import run_trial
from harness.types import StepRecord
from tests.harness.faults import small_plan

SECRETS = ("WANDB_API_KEY", "HF_TOKEN")


def leaky_trial(trial: PlannedTrial, directory: Path, results_dir: Path, attempt: int = 1) -> Iterator[StepRecord]:
    """The real trial; of seed 1 only the first records, and then a failure."""
    for number, record in enumerate(run_trial(trial, directory, results_dir, attempt)):
        yield record
        if trial.seed == 1 and number == 1:
            said = "refused: " + " ".join(os.environ.get(name, "") for name in SECRETS)
            print("chatter on stdout")
            print("chatter on stderr", file=sys.stderr)
            warnings.warn("chatter as a warning", stacklevel=1)
            logging.getLogger("some.library").info("chatter in a log")
            logging.getLogger("some.library").warning(said)
            logging.getLogger("harness.leak").warning(said)
            raise RuntimeError(said)


if __name__ == "__main__":
    plan = small_plan(
        [8],
        seeds=2,
        task={"name": "reverse_digits", "num_digits": 2},
        execution={"max_attempts": 2, "workers": 2},
        tracking={"wandb": True, "tensorboard": True},
        timing={"rounds": 1, "min_seconds": 0.01},
        budget_samples=256,
    )
    functions = WorkerFunctions(run_trial="tests.harness.leaky:leaky_trial")
    sys.exit(run_sweep(plan, plan.trials, Path(sys.argv[1]), functions))
