"""Members that are real processes on this machine, without a cluster: what harness.cluster starts on Ray."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import psutil

from harness.execution import Role
from harness.jobs import MemberDied, resolve
from harness.members import Shared

CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class _Value:
    value: Any

    def get(self) -> Any:
        return self.value


class _Process:
    """One process; its answers come in the order of the calls."""

    def __init__(self, of: str, args: tuple[Any, ...]) -> None:
        self.connection, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_serve, args=(theirs, of, args), daemon=True)
        self.process.start()
        theirs.close()
        self.calls = 0
        self.answers: list[tuple[bool, Any]] = []

    def answered(self, number: int, wait: bool) -> bool:
        """Whether call `number` is answered, taking in what has come."""
        try:
            while len(self.answers) <= number and (wait or self.connection.poll()):
                self.answers.append(self.connection.recv())
        except (EOFError, ConnectionError) as error:
            raise MemberDied(f"process {self.process.pid} is gone") from error
        return len(self.answers) > number


@dataclass(frozen=True)
class _Answer:
    process: _Process
    number: int

    def done(self) -> bool:
        try:
            return self.process.answered(self.number, wait=False)
        except MemberDied:
            return True

    def result(self) -> Any:
        self.process.answered(self.number, wait=True)
        is_error, value = self.process.answers[self.number]
        if is_error:
            raise value
        return value


class Processes:
    """See harness.members.Members."""

    def __init__(self, of: str, args_M: Sequence[tuple[Any, ...]]) -> None:
        self.members = [_Process(of, args) for args in args_M]

    @property
    def size(self) -> int:
        return len(self.members)

    def start(self, member: int, method: str, *args: Any) -> _Answer:
        process = self.members[member]
        with suppress(ConnectionError):  # its answer tells
            process.connection.send((method, args))
        process.calls += 1
        return _Answer(process, process.calls - 1)

    def share(self, value: Any) -> Shared:
        return _Value(value)

    def close(self) -> None:
        for member in self.members:
            member.process.kill()
            member.process.join()


def listening_at(pid: int) -> set[str]:
    """The addresses at which a process and its children listen."""
    root = psutil.Process(pid)
    return {
        connection.laddr.ip
        for process in (root, *root.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def spawn_processes(role: Role, of: str, args_M: Sequence[tuple[Any, ...]]) -> Processes:
    """See harness.members.Spawn."""
    return Processes(of, args_M)


def _serve(connection: Connection, of: str, args: tuple[Any, ...]) -> None:
    held = resolve(of)(*args)
    gc.freeze()  # an engine collects garbage when it is made: all that was imported would be looked through
    while True:
        method, args = connection.recv()
        try:
            connection.send((False, getattr(held, method)(*args)))
        except Exception as error:  # the caller meets it where it asks for the result
            connection.send((True, error))
