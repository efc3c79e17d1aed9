"""An attempt at a trial that is killed: python -m tests.harness.wandb_killed SWEEP_DIR NUM_RECORDS process|group."""

import os
import signal
import sys
from pathlib import Path

from tests.harness.wandb_client import TRIAL, attempt, record

if __name__ == "__main__":
    sweep_dir, num_records, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

    def records():
        for place in range(num_records):
            yield record(place)
        if what == "group":  # with the client's core process, as a lost node does
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    attempt(TRIAL, sweep_dir, records())
