"""The environment every test runs in. Set before anything heavy is imported; child processes inherit it."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # two processes with a thread pool each would fight over two cores
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_ERROR_REPORTING"] = "false"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
