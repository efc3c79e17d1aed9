"""What stands in the processes of a sweep: workers, and the members of their trials. Knows nothing of Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.courier import Courier, Home, RemoteShelf, moved
from harness.jobs import Event, Job, Piece, execute, resolve
from harness.run_dir import look_elsewhere

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def environment(threads: int) -> dict[str, str]:
    """Environment of a worker process, set before it imports anything that starts threads.

    Sets of text have one order in all processes: some tasks draw their questions from them.
    """
    threads_of = {name: str(threads) for name in _THREAD_VARIABLES}
    return threads_of | {"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class Setup:
    """What a process is told when it starts. `home` is None where all processes are on one machine.

    The settings travel in memory, to no file.
    """

    threads: int
    gpus: float
    settings: Mapping[str, str]
    home: Home | None = None
    shelf: RemoteShelf | None = None


class Process:
    """A process with its threads and devices set before anything heavy is imported."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.home = setup.home
        self.sees_results = setup.home is None or setup.home.is_seen()
        self.courier: Courier | None = None
        os.environ.update(environment(setup.threads), **setup.settings)
        if not setup.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a GPU nobody asked for is somebody else's
        import torch

        torch.set_num_threads(setup.threads)
        torch.set_num_interop_threads(1)

    @property
    def results(self) -> Path | None:
        """The results folder as it is known here; None where it is the same everywhere."""
        if self.courier is not None:
            return self.courier.root
        return self.home.results if self.home else None

    def reach(self, shelf: RemoteShelf) -> None:
        """Where the files of the results folder are to be had, for a process that does not see it."""
        if self.home is not None and self.courier is None:
            self.setup = replace(self.setup, shelf=shelf)
            self.courier = Courier(self.home, shelf)
            look_elsewhere(self.courier.copy)


class Worker(Process):
    """The process in which jobs run, one at a time."""

    current: Worker | None = None  # that of this process

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        Worker.current = self

    def ready(self) -> bool:
        """Returns once the process stands: whether it sees the results folder."""
        return self.sees_results

    def run(self, job: Job) -> Iterator[Event | Piece]:
        """The job's events; where it cannot write to the results folder, also the files it writes."""
        yield from execute(job) if self.courier is None else self.courier.execute(job)


class Member(Process):
    """One process of a trial beside its own, and the object it holds.

    `root` is the results folder in the arguments: that of the trial's own process.
    """

    def __init__(self, setup: Setup, root: Path | None, of: str, args: tuple[Any, ...]) -> None:
        super().__init__(setup)
        if not self.sees_results and setup.shelf is not None:
            self.reach(setup.shelf)
        self.root = root
        self.object: Any = None
        self.error: Exception | None = None
        try:
            self.object = resolve(of)(*self._here(args))
        except Exception as error:  # a constructor that raises would look like a process that died
            self.error = error

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        if self.error is not None:
            raise self.error
        return getattr(self.object, method)(*self._here(args))

    def _here(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.root is None or self.results is None:
            return args
        return moved(args, self.root, self.results)
