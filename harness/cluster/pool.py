"""Workers on Ray that live across trials: started, given jobs, heard, replaced when they die."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness.cluster.connection import (
    HEAD_GONE,
    await_end_of_earlier,
    connect,
    disconnect,
    head_answers,
    is_local,
    watched_head,
)
from harness.cluster.processes import Answer, options_in
from harness.courier import Home, Inbox, Shelf
from harness.errors import EnvironmentProblem
from harness.execution import Bundle, ExecutionConfig
from harness.fitting import num_fitting
from harness.jobs import Died, Event, Failed, Job, Piece
from harness.signals import deaf_once_interrupted, interrupted_afterwards
from harness.worker import Setup, Worker

START_TIMEOUT_S = 300.0
MAX_DEATHS_AT_START = 3  # of each worker
SPARE_WORKERS = 2
COUNT_NODES_EVERY_S = 5.0
PIECES_AT_A_TIME = 4  # on the way to the driver from each worker


@contextmanager
def worker_pool(execution: ExecutionConfig, most: int, home: Home | None = None) -> Iterator[RayPool]:
    """Workers, each with room for a trial: as many as fit, at most `most`; more as nodes join the cluster.

    EnvironmentProblem when none fits. `home`: where the workers' files belong, should they lie on other machines.
    """
    own = not ray.is_initialized()
    local = own and is_local()
    try:
        if own:
            with deaf_once_interrupted(), interrupted_afterwards():
                connect(execution)
        with nullcontext() if local else watched_head():
            if home is not None and not local:
                await_end_of_earlier(home)
            pool = RayPool(execution, most, None if local else home, spare=0 if local else SPARE_WORKERS)
            try:
                yield pool
            finally:
                pool.close()
    finally:
        if own:
            disconnect(local)


@dataclass(frozen=True)
class _RemoteShelf:
    """See harness.courier.RemoteShelf."""

    actor: Any

    def files(self, folder: str) -> dict[str, int]:
        found: dict[str, int] = Answer(self.actor.files.remote(folder)).result()
        return found

    def read(self, path: str, offset: int) -> bytes:
        content: bytes = Answer(self.actor.read.remote(path, offset)).result()
        return content


def _open_shelf(home: Home) -> _RemoteShelf:
    """A process on this node from which workers elsewhere get files."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    shelf: Any = ray.remote(Shelf).options(
        num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1, max_concurrency=4
    )
    return _RemoteShelf(shelf.remote(home.results))


@dataclass
class _Slot:
    """A worker and the placement group of its trials.

    Starting (`job` None, `waiting` its first answer), free (`waiting` None), or busy with `job`. `inbox` takes the
    files of a worker that cannot write to the results folder.
    """

    actor: Any
    waiting: Any
    group: Any
    job: Job | None = None
    heard_s: float = 0.0
    sees_results: bool = True
    inbox: Inbox | None = None

    @property
    def is_free(self) -> bool:
        return self.waiting is None

    @property
    def is_starting(self) -> bool:
        return self.waiting is not None and self.job is None

    def ended(self, whole: bool) -> None:
        """The job is over."""
        self.waiting, self.job = None, None
        if self.inbox is not None:
            inbox, self.inbox = self.inbox, None
            inbox.close(whole)


class RayPool:
    """The workers of a sweep (see harness.jobs.WorkerPool). A dead one is replaced at once.

    `spare` workers more than fit are asked for, so that the cluster starts them as soon as it has room.
    """

    def __init__(self, execution: ExecutionConfig, most: int, home: Home | None, spare: int) -> None:
        self._execution, self._most, self._home, self._spare = execution, most, home, spare
        self._fitting = num_fitting(_nodes(), execution)
        self._counted_s = time.monotonic()
        self._shelf: _RemoteShelf | None = None
        if home is not None and execution.num_engines + execution.num_rank_processes:
            self._shelf = _open_shelf(home)  # their processes may lie where the trial's does not
        self._deaths_at_start = 0
        self._none_ready_since_s: float | None = time.monotonic()
        self._slots: list[_Slot] = []
        self._fill()

    @property
    def size(self) -> int:
        return min(len(self._slots), max(self._fitting, 1))

    @property
    def free(self) -> int:
        return sum(slot.is_free for slot in self._slots)

    def start(self, job: Job) -> None:
        slot = next(slot for slot in self._slots if slot.is_free)
        slot.job, slot.heard_s = job, time.monotonic()
        options = {}
        if not slot.sees_results:
            assert self._home is not None
            slot.inbox = Inbox(self._home.results, job)
            options = {"_generator_backpressure_num_objects": PIECES_AT_A_TIME}
        slot.waiting = slot.actor.run.options(num_returns="streaming", **options).remote(job)

    def events(self, timeout_s: float) -> list[Event]:
        waiting = {slot.waiting: slot for slot in self._slots if slot.waiting is not None}
        ready: list[Any] = []
        if waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=timeout_s)
        found = [self._advance(waiting[key]) for key in ready]
        found += [self._end_of_hung(slot) for slot in self._slots]
        self._check_start()
        self._count_nodes()
        return [event for event in found if event is not None]

    def grow(self, size: int) -> None:
        """Have at least `size` workers, if so many fit."""
        self._most = max(size, len(self._slots))
        self._fill()

    def shrink(self, size: int) -> None:
        self._most = size
        least_busy_last = sorted(self._slots, key=lambda slot: (slot.is_starting, slot.is_free))
        for slot in least_busy_last[size:]:
            if slot.job is None:
                self._slots.remove(slot)
                _end(slot)

    def close(self) -> None:
        can_end = head_answers()  # else they end with the cluster
        while self._slots:
            slot = self._slots.pop()
            if can_end:
                _end(slot)
            slot.ended(whole=False)

    def _fill(self) -> None:
        while len(self._slots) < min(self._most, self._fitting + self._spare):
            self._slots.append(self._new_slot())

    def _count_nodes(self) -> None:
        """Now and then: what joined the cluster and what left it."""
        if self._spare and time.monotonic() - self._counted_s > COUNT_NODES_EVERY_S:
            self._counted_s = time.monotonic()
            _check_head()
            try:
                self._fitting = num_fitting(_nodes(), self._execution)
            except EnvironmentProblem:
                self._fitting = 0  # for the moment: see _check_start
            self._fill()

    def _new_slot(self) -> _Slot:
        execution = self._execution
        group = placement_group([_resources(bundle) for bundle in execution.bundles], strategy="PACK")
        _, takes = execution.place("trial", 0)
        name = f"{self._home.name}-{secrets.token_hex(8)}" if self._home else None
        worker: Any = ray.remote(Worker).options(name=name, **options_in(group, 0, takes))
        settings = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
        actor = worker.remote(Setup(execution.threads, takes.gpus, settings, self._home, self._shelf))
        return _Slot(actor, actor.ready.remote(), group)

    def _advance(self, slot: _Slot) -> Event | None:
        """Take what the slot has ready: the next event of its job, its readiness, or its death."""
        try:
            if slot.job is None:
                self._is_ready(slot)
                return None
            event: Event | Piece = ray.get(next(slot.waiting))
        except StopIteration:
            slot.ended(whole=True)
            return None
        except RayTaskError as error:
            return self._failed(slot, error)
        except RayError as error:  # the process or its node is gone, or what it sent is
            return self._replace(slot, error)
        slot.heard_s = time.monotonic()
        if not isinstance(event, Piece):
            return event
        assert slot.inbox is not None
        slot.inbox.take(event)
        return None

    def _is_ready(self, slot: _Slot) -> None:
        slot.sees_results, slot.waiting = ray.get(slot.waiting), None
        self._deaths_at_start = 0
        if not slot.sees_results:
            assert self._home is not None
            self._shelf = self._shelf or _open_shelf(self._home)
            slot.actor.reach.remote(self._shelf)

    def _failed(self, slot: _Slot, error: RayTaskError) -> Event:
        """The job failed outside its own code, such as an item that cannot be pickled."""
        if slot.job is None:
            raise EnvironmentProblem(f"a worker cannot start: {error}") from None
        key = slot.job.key
        slot.ended(whole=False)
        return Failed(key, "error", str(error).strip().splitlines()[-1], str(error))

    def _replace(self, slot: _Slot, error: RayError) -> Event | None:
        job = slot.job
        self._renew(slot)
        if job is not None:
            return Died(job.key, " ".join(str(error).split()))
        self._deaths_at_start += 1
        if self._deaths_at_start >= MAX_DEATHS_AT_START * len(self._slots):
            raise EnvironmentProblem(f"workers die while they start: {error}")
        return None

    def _renew(self, slot: _Slot) -> None:
        """Another worker in place of this one."""
        _check_head()
        _end(slot)
        slot.ended(whole=False)
        self._slots[self._slots.index(slot)] = self._new_slot()

    def _end_of_hung(self, slot: _Slot) -> Event | None:
        """End a worker whose job has said nothing for too long, and has nothing to say now."""
        limit_s = 60 * self._execution.hang_minutes
        if slot.job is None or time.monotonic() - slot.heard_s < limit_s or ray.wait([slot.waiting], timeout=0)[0]:
            return None
        key = slot.job.key
        self._renew(slot)
        reason = f"no sign of life for {self._execution.hang_minutes:g} minutes (execution.hang_minutes)"
        return Failed(key, "error", reason, reason)

    def _check_start(self) -> None:
        """EnvironmentProblem when every worker has been waiting too long for its resources."""
        if any(slot.is_free or slot.job for slot in self._slots):
            self._none_ready_since_s = None
        elif self._none_ready_since_s is None:
            self._none_ready_since_s = time.monotonic()
        elif time.monotonic() - self._none_ready_since_s > START_TIMEOUT_S:
            needs = _sum(self._execution.bundles)
            free = ray.available_resources()
            raise EnvironmentProblem(
                f"no worker has started for {START_TIMEOUT_S:.0f} s: a trial needs "
                + ", ".join(f"{name} {amount:g} (free: {free.get(name, 0):g})" for name, amount in needs.items())
            )


def _check_head() -> None:
    if not head_answers():
        raise EnvironmentProblem(HEAD_GONE)


def _nodes() -> list[dict[str, float]]:
    """What the nodes of the cluster have."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _sum(bundles: Sequence[Bundle]) -> dict[str, float]:
    needs: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in _resources(bundle).items():
            needs[name] = needs.get(name, 0.0) + amount
    return needs


def _resources(bundle: Bundle) -> dict[str, float]:
    amounts = (("CPU", bundle.cpus), ("GPU", bundle.gpus), *bundle.custom)
    return {name: amount for name, amount in amounts if amount}


def _end(slot: _Slot) -> None:
    """End the worker; with its placement group go the other processes of its trial."""
    ray.kill(slot.actor)
    remove_placement_group(slot.group)
