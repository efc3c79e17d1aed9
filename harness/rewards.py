"""Scores responses: in place, or in processes that are ended when they hang. The only file that imports pebble.

The processes import this file and a task, and nothing that computes.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from pebble import ProcessExpired, ProcessPool

from harness.tasks import make_task
from harness.tasks.config import TaskConfig
from harness.tasks.task import Task
from harness.types import Prompt

logger = logging.getLogger(__name__)

WALL_FACTOR = 10.0
"""A score that waits instead of computing is given up after so many times the limit, by the clock on the wall."""
_LIMITS = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}


@dataclass(frozen=True)
class Scores:
    """Score of each response, float [S], and how many count as 0 because scoring them failed or took too long.

    The counts are None where scores are taken as they come.
    """

    scores_S: np.ndarray
    num_errors: int | None = None
    num_timeouts: int | None = None


class Scorer(Protocol):
    """Scores responses by the rule of a task."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Scores:
        """The score of each response to the prompt at its place."""

    def close(self) -> None:
        """End what was started."""


def make_scorer(task: Task, config: TaskConfig, num_processes: int) -> Scorer:
    """In place for a task whose score needs no limit; `config` is what the task was made of."""
    if task.score_limit_s is None:
        return ScorerInPlace(task)
    return ScorerProcesses(partial(make_task, config), task.score_limit_s, num_processes)


class ScorerInPlace:
    """For rules that are quick and cannot fail; an exception is one of the trial."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Scores:
        scores = [self.task.score(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        return Scores(np.array(scores, dtype=np.float64))

    def close(self) -> None:
        pass


class ScorerProcesses:
    """A score that raises, takes longer than `limit_s`, ends its process or is not within 0 to 1 counts as 0.

    `make` makes the task in each process. The limit is of the processor's time, so that a busy machine changes no
    reward. The system itself ends a process at it, whatever code is running and whether the trial still lives or not.
    """

    def __init__(self, make: Callable[[], Task], limit_s: float, num_processes: int) -> None:
        self.limit_s = limit_s
        self.pool = ProcessPool(
            num_processes,
            initializer=_begin,
            initargs=(make,),
            context=multiprocessing.get_context("spawn"),  # a fork would copy threads of torch in any state
        )
        self.warned: set[str] = set()
        self.pool.schedule(_is_ready).result()  # a task that cannot be made there ends the trial now

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Scores:
        futures = [
            self.pool.schedule(_score, (prompt, response, self.limit_s))
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        scores_S = np.zeros(len(futures))
        num_errors = num_timeouts = 0
        for s, future in enumerate(futures):
            found = _result(future)
            if isinstance(found, float):
                scores_S[s] = found
                continue
            num_timeouts += found is None
            num_errors += found is not None
            self._warn(found or f"took longer than task.score_limit_s {self.limit_s:g}", prompts[s])
        return Scores(scores_S, num_errors, num_timeouts)

    def close(self) -> None:
        self.pool.stop()
        self.pool.join()

    def _warn(self, problem: str, prompt: Prompt) -> None:
        """Once for each kind of problem."""
        kind = problem.partition(":")[0]
        if kind not in self.warned:
            self.warned.add(kind)
            logger.warning("the score of a response to prompt %d counts as 0: %s", prompt.index, problem)


def _result(future: Future[float | str]) -> float | str | None:
    """A score, what went wrong, or None for the time limit."""
    try:
        return future.result()
    except ProcessExpired as error:
        return None if -error.exitcode in _LIMITS.values() else f"its process ended (exit code {error.exitcode})"


_task: Task | None = None


def _begin(make: Callable[[], Task]) -> None:
    """In a new process."""
    global _task
    for end in _LIMITS.values():
        signal.signal(end, signal.SIG_DFL)
    _task = make()


def _is_ready() -> bool:
    return _task is not None


def _score(prompt: Prompt, response: str, limit_s: float) -> float | str:
    """The score, or in words why there is none."""
    assert _task is not None
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * limit_s)
    try:
        score = float(_task.score(prompt, response))
    except Exception as error:  # a rule meets everything that a model can write
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        for timer in _LIMITS:
            signal.setitimer(timer, 0)
    return score if 0 <= score <= 1 else f"not within 0 to 1: {score:g}"
