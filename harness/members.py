"""The other processes of one trial: trainer ranks and engines. What they are to the trial's own process.

harness.cluster starts them on Ray; `in_process` stands in for them where one process will do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.execution import Role
from harness.jobs import MemberDied, resolve

DEATH_SHOWS_WITHIN_S = 5.0


class Answer(Protocol):
    """What a call will have returned once it is over."""

    def done(self) -> bool:
        """Whether it is over, without waiting."""

    def result(self) -> Any:
        """Waits for it. Raises what the call raised, or harness.jobs.MemberDied."""


class Shared(Protocol):
    """A value that many calls are given, sent once."""

    def get(self) -> Any:
        """The value."""


class Members(Protocol):
    """Like processes, each holding one object; calls of one member run one after another, in order."""

    @property
    def size(self) -> int:
        """How many there are."""

    def start(self, member: int, method: str, *args: Any) -> Answer:
        """Call a method of one member's object without waiting for it."""

    def share(self, value: Any) -> Shared:
        """Put a value where every member's process finds it."""

    def close(self) -> None:
        """End the processes at once."""


def call_all(members: Members, method: str, *args: Any) -> list[Any]:
    """The same call of every member, all at once; their results in order."""
    return call_each(members, method, [args] * members.size)


def call_each(members: Members, method: str, args_M: Sequence[tuple[Any, ...]]) -> list[Any]:
    """A call of every member with its own arguments, all at once; their results in order."""
    return results([members.start(member, method, *args) for member, args in enumerate(args_M)])


def results(answers: Sequence[Answer]) -> list[Any]:
    """What the calls returned, in order. Raises once one of them does: others may be waiting for it and never end.

    Where a member dies those that work with it fail too, perhaps before its death shows: MemberDied goes before them.
    """
    found: dict[int, Any] = {}
    error: Exception | None = None
    until_s = float("inf")
    while len(found) < len(answers) and time.monotonic() < until_s:
        over = [number for number, answer in enumerate(answers) if number not in found and answer.done()]
        for number in over:
            try:
                found[number] = answers[number].result()
            except MemberDied:
                raise
            except Exception as failure:  # raised below
                found[number], error = None, error or failure
                until_s = min(until_s, time.monotonic() + DEATH_SHOWS_WITHIN_S)
        if not over:
            time.sleep(0.0005)
    if error is not None:
        raise error
    return [found[number] for number in range(len(answers))]


# (role, "module:Class", arguments of each member's constructor) -> the members
Spawn = Callable[[Role, str, Sequence[tuple[Any, ...]]], Members]


@dataclass(frozen=True)
class _Returned:
    value: Any = None
    error: Exception | None = None

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def get(self) -> Any:
        return self.value


class _InProcess:
    def __init__(self, objects: list[Any]) -> None:
        self.objects = objects

    @property
    def size(self) -> int:
        return len(self.objects)

    def start(self, member: int, method: str, *args: Any) -> Answer:
        try:
            return _Returned(getattr(self.objects[member], method)(*args))
        except Exception as error:  # the caller meets it where it asks for the result
            return _Returned(error=error)

    def share(self, value: Any) -> Shared:
        return _Returned(value)

    def close(self) -> None:
        for each in self.objects:
            if hasattr(each, "close"):
                each.close()
        self.objects.clear()


def in_process(role: Role, of: str, args_M: Sequence[tuple[Any, ...]]) -> Members:
    """Members that are objects of this process; each call is over when it returns."""
    return _InProcess([resolve(of)(*args) for args in args_M])
