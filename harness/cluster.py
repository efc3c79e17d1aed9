"""Ray: worker actors that live across trials. The only file that imports ray.

Without RAY_ADDRESS a small local cluster is started and ends with this process; with it the workers are
spread over that cluster, whose nodes must see the same project and results folders.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# Read when ray is imported: no telemetry, and no messages of its own between ours.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
if os.environ.get("RAY_ADDRESS", "local") == "local":
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # a local cluster listens on the loopback only

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:
    from harness.errors import EnvironmentProblem

    raise EnvironmentProblem(f"the package ray cannot be imported ({error}); run: make setup") from None

from harness.errors import EnvironmentProblem
from harness.jobs import Died, Event, Failed, Job, execute

OBJECT_STORE_BYTES = 100 * 1024**2  # only small records pass through it
START_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 10.0
MAX_DEATHS_AT_START = 3
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class WorkerNeeds:
    """What one worker occupies: `threads` CPUs and `gpus` GPUs (a fraction shares one)."""

    threads: int
    gpus: float

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a worker process, set before it imports anything that starts threads."""
        return {name: str(self.threads) for name in _THREAD_VARIABLES} | {"TOKENIZERS_PARALLELISM": "false"}


@contextmanager
def worker_pool(needs: WorkerNeeds, max_workers: int) -> Iterator[RayPool]:
    """As many workers as fit, at most `max_workers`. EnvironmentProblem when not one does."""
    own = not ray.is_initialized()
    if own:
        connect(needs)
    try:
        size = min(max_workers, num_fitting([node["Resources"] for node in ray.nodes() if node["Alive"]], needs))
        pool = RayPool(needs, size)
        try:
            yield pool
        finally:
            pool.close()
    finally:
        if own:
            ray.shutdown()


def num_fitting(nodes: list[Mapping[str, float]], needs: WorkerNeeds) -> int:
    """How many workers the nodes can hold. EnvironmentProblem that names the short resource when none.

    >>> num_fitting([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 3.0}], WorkerNeeds(threads=2, gpus=0))
    5
    >>> num_fitting([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 3.0}], WorkerNeeds(threads=2, gpus=0.5))
    2
    """
    fitting = sum(_fitting_on(node, needs) for node in nodes)
    if fitting:
        return fitting
    most_cpus = max((int(node.get("CPU", 0)) for node in nodes), default=0)
    if most_cpus < needs.threads:
        raise EnvironmentProblem(
            f"CPU: a worker needs {needs.threads} (execution.threads), the largest node has {most_cpus}; "
            f"set execution.threads to at most {max(most_cpus, 1)}"
        )
    most_gpus = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
    if most_gpus < needs.gpus:
        raise EnvironmentProblem(
            f"GPU: a worker needs {needs.gpus:g} (execution.gpus_per_rank), the largest node has {most_gpus:g}; "
            f"set execution.gpus_per_rank to at most {most_gpus:g}"
        )
    raise EnvironmentProblem(f"no node has {needs.threads} CPUs and {needs.gpus:g} GPUs together, as a worker needs")


def _fitting_on(node: Mapping[str, float], needs: WorkerNeeds) -> int:
    by_cpu = int(node.get("CPU", 0)) // needs.threads
    if not needs.gpus:
        return by_cpu
    gpus = int(node.get("GPU", 0))
    by_gpu = gpus * int(1 / needs.gpus) if needs.gpus <= 1 else int(gpus / needs.gpus)  # a fraction is of one GPU
    return min(by_cpu, by_gpu)


def connect(needs: WorkerNeeds) -> None:
    """Join the cluster at RAY_ADDRESS, or start one here. EnvironmentProblem when that fails."""
    address = os.environ.get("RAY_ADDRESS", "local")
    local: dict[str, Any] = {}
    if address == "local":
        cpus = len(os.sched_getaffinity(0))
        num_fitting([{"CPU": cpus, "GPU": 1024}], needs)  # CPUs need no Ray to be counted; GPUs are counted by it
        local = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        _knock(address)
        ray.init(
            address=address,
            logging_level=logging.ERROR,
            log_to_driver=False,
            runtime_env={"env_vars": needs.environment},
            **local,
        )
    except Exception as error:  # a node that does not come up in time raises no narrower type
        where = "Ray does not start here" if local else f"the Ray cluster at RAY_ADDRESS={address} cannot be reached"
        raise EnvironmentProblem(f"{where}: {error}") from error


def _knock(address: str) -> None:
    """OSError when nothing listens at host:port: Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()


class _Worker:
    """The process in which jobs run, one at a time."""

    def __init__(self, needs: WorkerNeeds, environment: Mapping[str, str]) -> None:
        os.environ.update(needs.environment, **environment)
        if not needs.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a GPU nobody asked for is somebody else's
        import torch

        torch.set_num_threads(needs.threads)
        torch.set_num_interop_threads(1)

    def ready(self) -> None:
        """Returns once the process stands."""

    def run(self, job: Job) -> Iterator[Event]:
        yield from execute(job)


@dataclass
class _Slot:
    """A worker: starting (`job` None, `waiting` its first answer), free (`waiting` None), or busy with `job`."""

    actor: Any
    waiting: Any
    job: Job | None = None

    @property
    def is_free(self) -> bool:
        return self.waiting is None


class RayPool:
    """The workers of a sweep (see harness.jobs.WorkerPool). A dead one is replaced at once."""

    def __init__(self, needs: WorkerNeeds, size: int) -> None:
        self._needs = needs
        # A remote node does not have this process's environment. The settings travel in memory, to no file.
        self._environment = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
        self._deaths_at_start = 0
        self._none_ready_since_s: float | None = time.monotonic()
        self._slots = [self._new_slot() for _ in range(size)]

    @property
    def size(self) -> int:
        return len(self._slots)

    @property
    def free(self) -> int:
        return sum(slot.is_free for slot in self._slots)

    def start(self, job: Job) -> None:
        slot = next(slot for slot in self._slots if slot.is_free)
        slot.job = job
        slot.waiting = slot.actor.run.options(num_returns="streaming").remote(job)

    def events(self, timeout_s: float) -> list[Event]:
        waiting = {slot.waiting: slot for slot in self._slots if slot.waiting is not None}
        if not waiting:
            return []
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=timeout_s)
        events = [event for key in ready if (event := self._advance(waiting[key])) is not None]
        self._check_start()
        return events

    def shrink(self, size: int) -> None:
        for slot in sorted(self._slots, key=lambda slot: not slot.is_free)[size:]:
            self._slots.remove(slot)
            ray.kill(slot.actor)

    def close(self) -> None:
        self.shrink(0)

    def _new_slot(self) -> _Slot:
        worker: Any = ray.remote(_Worker).options(
            num_cpus=self._needs.threads, num_gpus=self._needs.gpus, max_restarts=0, max_task_retries=0
        )
        actor = worker.remote(self._needs, self._environment)
        return _Slot(actor, actor.ready.remote())

    def _advance(self, slot: _Slot) -> Event | None:
        """Take what the slot has ready: the next event of its job, its readiness, or its death."""
        try:
            if slot.job is None:
                ray.get(slot.waiting)
                slot.waiting = None
                self._deaths_at_start = 0
                return None
            event: Event = ray.get(next(slot.waiting))
            return event
        except StopIteration:
            slot.waiting, slot.job = None, None
            return None
        except RayTaskError as error:
            return self._failed(slot, error)
        except RayError as error:  # the process or its node is gone, or what it sent is
            return self._replace(slot, error)

    def _failed(self, slot: _Slot, error: RayTaskError) -> Event:
        """The job failed outside its own code, such as an item that cannot be pickled."""
        if slot.job is None:
            raise EnvironmentProblem(f"a worker cannot start: {error}") from None
        key, slot.waiting, slot.job = slot.job.key, None, None
        return Failed(key, "error", str(error).strip().splitlines()[-1], str(error))

    def _replace(self, slot: _Slot, error: RayError) -> Event | None:
        ray.kill(slot.actor)
        self._slots[self._slots.index(slot)] = self._new_slot()
        if slot.job is not None:
            return Died(slot.job.key, " ".join(str(error).split()))
        self._deaths_at_start += 1
        if self._deaths_at_start >= MAX_DEATHS_AT_START:
            raise EnvironmentProblem(f"workers die while they start: {error}")
        return None

    def _check_start(self) -> None:
        """EnvironmentProblem when every worker has been waiting too long for its resources."""
        if any(slot.is_free or slot.job for slot in self._slots):
            self._none_ready_since_s = None
        elif self._none_ready_since_s is None:
            self._none_ready_since_s = time.monotonic()
        elif time.monotonic() - self._none_ready_since_s > START_TIMEOUT_S:
            free = {name: ray.available_resources().get(name, 0) for name in ("CPU", "GPU")}
            raise EnvironmentProblem(
                f"no worker has started for {START_TIMEOUT_S:.0f} s: each needs {self._needs.threads} CPUs and "
                f"{self._needs.gpus:g} GPUs, the cluster has {free['CPU']:g} and {free['GPU']:g} free"
            )
