"""Ray: the cluster, the pool of workers there that live across trials, and the other processes of a trial.

The only folder that imports ray. Without RAY_ADDRESS a small local cluster is started and ends with this process; with
it the workers are spread over that cluster. Its nodes need the project; those that do not see the results folder work
on copies.
"""

import os

# Read when ray is imported: no telemetry, no messages of its own between ours, no wait before it ends.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
if os.environ.get("RAY_ADDRESS", "local") == "local":
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # a local cluster listens on the loopback only

try:
    import ray  # noqa: F401  the files of this folder use it
except ImportError as error:
    from harness.errors import EnvironmentProblem

    raise EnvironmentProblem(f"the package ray cannot be imported ({error}); run: make setup") from None
