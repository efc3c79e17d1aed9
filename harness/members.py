"""The other processes of one trial: trainer ranks and engines. What they are to the trial's own process.

harness.cluster starts them on Ray; `in_process` stands in for them where one process will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.execution import Role
from harness.jobs import resolve


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
    answers = [members.start(member, method, *args) for member, args in enumerate(args_M)]
    return [answer.result() for answer in answers]


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
        self.objects.clear()


def in_process(role: Role, of: str, args_M: Sequence[tuple[Any, ...]]) -> Members:
    """Members that are objects of this process; each call is over when it returns."""
    return _InProcess([resolve(of)(*args) for args in args_M])
