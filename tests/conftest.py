"""The environment every test runs in. Set before anything heavy is imported; child processes inherit it."""

from __future__ import annotations

import os
import signal

os.environ["OMP_NUM_THREADS"] = "1"  # two processes with a thread pool each would fight over two cores
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_ERROR_REPORTING"] = "false"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

# Started in the background (nohup, &) pytest ignores these, and what it starts would too; a signal is sent to stop it.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)
