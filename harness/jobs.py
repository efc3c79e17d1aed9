"""What a sweep asks of the workers that run its trials, and what comes back. Knows nothing of Ray."""

from __future__ import annotations

import importlib
import logging
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from harness.errors import EnvironmentProblem, InputError
from harness.run_dir import disk_problem, is_disk_problem
from harness.secrets import redact


@dataclass(frozen=True)
class Job:
    """A call to make in a worker. `function` is "module:name"; a generator hands back each of its items.

    Folders relative to the results folder: it alone reads and writes what it `owns`, it makes new folders in those
    that it `adds` to, and `reads` files. Other workers than those that see the results folder work on copies
    (harness.courier).
    """

    key: str
    function: str
    args: tuple[Any, ...]
    owns: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


@dataclass(frozen=True)
class Item:
    """What a job yielded, or returned."""

    key: str
    value: Any


@dataclass(frozen=True)
class Finished:
    """A job ended."""

    key: str


@dataclass(frozen=True)
class Failed:
    """A job raised; its worker lives. `kind` says whose fault it is: the code's, the user's, the machine's."""

    key: str
    kind: Literal["error", "input", "environment"]
    reason: str
    traceback: str


@dataclass(frozen=True)
class Died:
    """A job's worker, or another process of it, is gone, by a kill or a lost node; another takes its place."""

    key: str
    reason: str


@dataclass(frozen=True)
class Warned:
    """A warning that the harness logged in a worker."""

    text: str


@dataclass(frozen=True)
class Piece:
    """A part of a file that a job wrote where the driver does not see it; an offset below 0: the file is gone."""

    key: str
    path: str
    offset: int
    content: bytes
    last: bool


class MemberDied(Exception):
    """A process that works for a job is gone, by a kill or a lost node: nobody's error, and no attempt used up."""


Event = Item | Finished | Failed | Died | Warned


class WorkerPool(Protocol):
    """Workers that run one job at a time each and live across jobs."""

    @property
    def size(self) -> int:
        """How many workers there are, those that are still starting included."""

    @property
    def free(self) -> int:
        """How many workers would take a job now."""

    def start(self, job: Job) -> None:
        """Give the job to a free worker."""

    def events(self, timeout_s: float) -> list[Event]:
        """What happened since the last call; waits up to `timeout_s` for the first event."""

    def shrink(self, size: int) -> None:
        """Stop all but `size` workers; none may be busy."""

    def close(self) -> None:
        """Stop every worker at once, busy or not."""


def execute(job: Job) -> Iterator[Event]:
    """Run the job here. An exception of the job is an event, not an exception; Died: another process of it is gone."""
    end: Event
    with _harness_warnings() as warnings:
        try:
            result = resolve(job.function)(*job.args)
            with closing(result if isinstance(result, Generator) else _only(result)) as items:
                for item in items:
                    while warnings:
                        yield warnings.popleft()
                    yield Item(job.key, item)
        except MemberDied as death:
            end = Died(job.key, str(death))
        except Exception as error:  # the trial's boundary: whatever it was becomes data
            end = describe_failure(job.key, error)
        else:
            end = Finished(job.key)
        while warnings:  # not `yield from`: Ray sends to the generator, and a deque takes nothing
            yield warnings.popleft()
        yield end


def resolve(function: str) -> Callable[..., Any]:
    """The function that "module:name" names."""
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def describe_failure(key: str, error: Exception) -> Failed:
    """The failure as data: one line of reason, the whole traceback.

    >>> describe_failure("trial", ZeroDivisionError("division by zero")).reason
    'ZeroDivisionError: division by zero'
    """
    text = redact("".join(traceback.format_exception(error)))
    if is_disk_problem(error):
        error = disk_problem(error)
    if isinstance(error, InputError):
        return Failed(key, "input", redact(str(error)), text)
    if isinstance(error, EnvironmentProblem):
        return Failed(key, "environment", redact(str(error)), text)
    reason = redact("".join(traceback.format_exception_only(error)).strip().replace("\n", " "))
    return Failed(key, "error", reason, text)


def _only(result: Any) -> Generator[Any, None, None]:
    yield result


class _Collector(logging.Handler):
    def __init__(self, warnings: deque[Event]) -> None:
        super().__init__(logging.WARNING)
        self._warnings = warnings

    def emit(self, record: logging.LogRecord) -> None:
        self._warnings.append(Warned(redact(record.getMessage())))


@contextmanager
def _harness_warnings() -> Iterator[deque[Event]]:
    """Collects what the harness warns about: a worker's own console is seen by nobody."""
    warnings: deque[Event] = deque()
    handler = _Collector(warnings)
    logger = logging.getLogger("harness")
    logger.addHandler(handler)
    try:
        yield warnings
    finally:
        logger.removeHandler(handler)
