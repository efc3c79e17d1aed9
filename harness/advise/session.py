"""One Ray and one pool of workers for all steps of an advice: starting them takes longer than many a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.courier import Home
from harness.execution import ExecutionConfig
from harness.jobs import Died, Event, Failed, Finished, Job, WorkerPool
from harness.sweep import OpenPool, ray_pool


@dataclass
class _Share:
    """A kept pool as one step sees it: up to `most` of its workers; the others rest."""

    pool: WorkerPool
    most: int
    busy: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        return min(self.pool.size, self.most)

    @property
    def free(self) -> int:
        return min(self.pool.free, self.most - len(self.busy))

    def start(self, job: Job) -> None:
        self.busy.add(job.key)
        self.pool.start(job)

    def events(self, timeout_s: float) -> list[Event]:
        found = self.pool.events(timeout_s)
        self.busy -= {event.key for event in found if isinstance(event, Finished | Failed | Died)}
        return found

    def shrink(self, size: int) -> None:
        self.most = size

    def close(self) -> None:
        """The pool goes on."""


@contextmanager
def kept_pool(open_pool: OpenPool = ray_pool) -> Iterator[OpenPool]:
    """Opens pools that are one, which lives until the end, or until something goes wrong while it is used.

    On a cluster that was there before, where workers may come and go and files travel, each step opens its own.
    """
    from harness.cluster.connection import is_local

    with ExitStack() as stack:
        kept: dict[Any, Any] = {}

        @contextmanager
        def share(execution: ExecutionConfig, most: int, home: Home) -> Iterator[WorkerPool]:
            needs = (execution.bundles, execution.threads)
            if needs not in kept:
                stack.close()
                kept.clear()
                kept[needs] = stack.enter_context(open_pool(execution, most, home))
            kept[needs].grow(most)
            try:
                yield _Share(kept[needs], most)
            except BaseException:
                kept.clear()
                stack.close()
                raise

        def opened(execution: ExecutionConfig, most: int, home: Home) -> AbstractContextManager[WorkerPool]:
            return share(execution, most, home) if is_local() else open_pool(execution, most, home)

        yield opened
