"""A sweep of fault trials in a process of its own: python -m tests.harness.fault_driver RESULTS NUM_TRIALS [SETTINGS].

SETTINGS: more of execution, as JSON.
"""

import json
import sys
from pathlib import Path

from harness.errors import HarnessError
from harness.signals import leave
from harness.sweep import run_sweep
from tests.harness.faults import FUNCTIONS, small_plan

if __name__ == "__main__":
    execution = {
        "checkpoint_every_samples": 128,
        "workers": 2,
        **json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}"),
    }
    plan = small_plan([8], seeds=int(sys.argv[2]), execution=execution)
    try:
        leave(run_sweep(plan, plan.trials, Path(sys.argv[1]), FUNCTIONS))
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        leave(error.exit_code)
