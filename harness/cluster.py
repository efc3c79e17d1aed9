"""Ray: workers that live across trials, and the other processes of a trial. The only file that imports ray.

Without RAY_ADDRESS a small local cluster is started and ends with this process; with it the workers are
spread over that cluster, whose nodes must see the same project and results folders.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
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
    from ray.util import get_current_placement_group, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    from harness.errors import EnvironmentProblem

    raise EnvironmentProblem(f"the package ray cannot be imported ({error}); run: make setup") from None

from harness.errors import EnvironmentProblem
from harness.execution import Bundle, ExecutionConfig, Role
from harness.fitting import num_fitting
from harness.jobs import Died, Event, Failed, Job, MemberDied, execute, resolve
from harness.members import Spawn

OBJECT_STORE_BYTES = 100 * 1024**2  # only small records pass through it
START_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 10.0
MAX_DEATHS_AT_START = 3
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def environment(threads: int) -> dict[str, str]:
    """Environment of a worker process, set before it imports anything that starts threads.

    Sets of text have one order in all processes: some tasks draw their questions from them.
    """
    threads_of = {name: str(threads) for name in _THREAD_VARIABLES}
    return threads_of | {"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}


@contextmanager
def worker_pool(execution: ExecutionConfig, max_workers: int) -> Iterator[RayPool]:
    """As many workers as fit, at most `max_workers`, each with room for a trial. EnvironmentProblem when none does."""
    own = not ray.is_initialized()
    if own:
        connect(execution)
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        pool = RayPool(execution, min(max_workers, num_fitting(nodes, execution)))
        try:
            yield pool
        finally:
            pool.close()
    finally:
        if own:
            ray.shutdown()


def connect(execution: ExecutionConfig) -> None:
    """Join the cluster at RAY_ADDRESS, or start one here. EnvironmentProblem when that fails."""
    address = os.environ.get("RAY_ADDRESS", "local")
    local: dict[str, Any] = {}
    if address == "local":
        cpus = len(os.sched_getaffinity(0))
        num_fitting([{"CPU": cpus, "GPU": 1024}], execution)  # CPUs need no Ray to be counted; GPUs are counted by it
        local = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        _knock(address)
        ray.init(
            address=address,
            logging_level=logging.ERROR,
            log_to_driver=False,
            runtime_env={"env_vars": environment(execution.threads)},
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


class _Process:
    """A process with its threads and devices set before anything heavy is imported."""

    def __init__(self, threads: int, gpus: float, settings: Mapping[str, str]) -> None:
        os.environ.update(environment(threads), **settings)
        if not gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a GPU nobody asked for is somebody else's
        import torch

        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)


class _Worker(_Process):
    """The process in which jobs run, one at a time."""

    def ready(self) -> None:
        """Returns once the process stands."""

    def run(self, job: Job) -> Iterator[Event]:
        yield from execute(job)


@dataclass
class _Slot:
    """A worker and the placement group of its trials.

    Starting (`job` None, `waiting` its first answer), free (`waiting` None), or busy with `job`.
    """

    actor: Any
    waiting: Any
    group: Any
    job: Job | None = None

    @property
    def is_free(self) -> bool:
        return self.waiting is None


class RayPool:
    """The workers of a sweep (see harness.jobs.WorkerPool). A dead one is replaced at once."""

    def __init__(self, execution: ExecutionConfig, size: int) -> None:
        self._execution = execution
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
            _end(slot)

    def close(self) -> None:
        self.shrink(0)

    def _new_slot(self) -> _Slot:
        execution = self._execution
        group = placement_group([_resources(bundle) for bundle in execution.bundles], strategy="PACK")
        _, takes = execution.place("trial", 0)
        worker: Any = ray.remote(_Worker).options(**_options(group, 0, takes))
        actor = worker.remote(execution.threads, takes.gpus, self._environment)
        return _Slot(actor, actor.ready.remote(), group)

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
        _end(slot)
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
                f"no worker has started for {START_TIMEOUT_S:.0f} s: a trial needs "
                f"{sum(bundle.cpus for bundle in self._execution.bundles):g} CPUs and "
                f"{sum(bundle.gpus for bundle in self._execution.bundles):g} GPUs, "
                f"the cluster has {free['CPU']:g} and {free['GPU']:g} free"
            )


def _resources(bundle: Bundle) -> dict[str, float]:
    return {name: amount for name, amount in (("CPU", bundle.cpus), ("GPU", bundle.gpus)) if amount}


def _options(group: Any, bundle: int, takes: Bundle) -> dict[str, Any]:
    place = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
    return {
        "num_cpus": takes.cpus,
        "num_gpus": takes.gpus,
        "scheduling_strategy": place,
        "max_restarts": 0,
        "max_task_retries": 0,
    }


def _end(slot: _Slot) -> None:
    """End the worker; with its placement group go the other processes of its trial."""
    ray.kill(slot.actor)
    remove_placement_group(slot.group)


class _Member(_Process):
    """One process of a trial beside its own, and the object it holds."""

    def __init__(self, threads: int, gpus: float, settings: Mapping[str, str], of: str, args: tuple[Any, ...]) -> None:
        super().__init__(threads, gpus, settings)
        self.object = resolve(of)(*args)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        return getattr(self.object, method)(*args)


@dataclass(frozen=True)
class _Answer:
    """See harness.members.Answer."""

    reference: Any

    def done(self) -> bool:
        return bool(ray.wait([self.reference], timeout=0)[0])

    def result(self) -> Any:
        try:
            return ray.get(self.reference)
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            raise MemberDied(" ".join(str(error).split())) from error


@dataclass(frozen=True)
class _Shared:
    """See harness.members.Shared."""

    reference: Any

    def get(self) -> Any:
        return ray.get(self.reference)


@dataclass(frozen=True)
class _RayMembers:
    """See harness.members.Members."""

    actors: list[Any]

    @property
    def size(self) -> int:
        return len(self.actors)

    def start(self, member: int, method: str, *args: Any) -> _Answer:
        return _Answer(self.actors[member].call.remote(method, args))

    def share(self, value: Any) -> _Shared:
        return _Shared(ray.put(value))

    def close(self) -> None:
        while self.actors:
            ray.kill(self.actors.pop())


def spawner(execution: ExecutionConfig) -> Spawn:
    """Starts the other processes of a trial, in a worker, within the placement group that the worker lives in."""

    def spawn(role: Role, of: str, args_M: Sequence[tuple[Any, ...]]) -> _RayMembers:
        group = get_current_placement_group()
        if group is None:
            raise EnvironmentProblem(f"a trial with processes of its own ({role}) runs in: python -m harness sweep")
        settings = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
        actors = []
        for number, args in enumerate(args_M):
            bundle, takes = execution.place(role, number)
            member: Any = ray.remote(_Member).options(**_options(group, bundle, takes))
            actors.append(member.remote(execution.threads, takes.gpus, settings, of, args))
        return _RayMembers(actors)

    return spawn
