"""Joining the cluster at RAY_ADDRESS, or starting one here."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from harness.courier import Home
from harness.errors import EnvironmentProblem
from harness.execution import ExecutionConfig
from harness.fitting import num_fitting
from harness.signals import leave_at_once
from harness.worker import environment

OBJECT_STORE_BYTES = 100 * 1024**2  # only small records pass through it
CONNECT_TIMEOUT_S = 10.0
START_TRIES, START_EVERY_S = 3, 3.0
HEAD_TRIES = 3
HEAD_EVERY_S = 2.0
TIME_TO_END_S = 10.0
HEAD_GONE = "the head of the Ray cluster is gone; the same command goes on once there is a cluster again"
EARLIER_TIMEOUT_S = 60.0


def _address() -> str:
    return os.environ.get("RAY_ADDRESS", "local")


def is_local() -> bool:
    """Whether connect starts a cluster of this process's own."""
    return _address() == "local"


def connect(execution: ExecutionConfig) -> None:
    """Join the cluster at RAY_ADDRESS, or start one here. EnvironmentProblem when that fails."""
    address = _address()
    if address.startswith("ray://"):
        raise EnvironmentProblem(
            f"RAY_ADDRESS={address}: needs HOST:PORT, called on a node of the cluster (there: RAY_ADDRESS=auto), "
            f"or from a job (ray job submit)"
        )
    local: dict[str, Any] = {}
    if address == "local":
        cpus = len(os.sched_getaffinity(0))
        num_fitting([{"CPU": cpus, "GPU": 1024}], execution)  # CPUs need no Ray to be counted; GPUs are counted by it
        local = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    ray._private.worker.listen_error_messages = _do_nothing  # type: ignore[assignment]
    ray._private.utils.set_sigterm_handler = _do_nothing
    variables = {"env_vars": environment(execution.threads)}
    for left in reversed(range(START_TRIES if local else 1)):
        try:
            _knock(address)
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False, runtime_env=variables, **local)
            return
        except Exception as error:  # a node that does not come up in time raises no narrower type
            if not left:
                raise EnvironmentProblem(f"{_what_failed(address)}: {error}") from error
        ray.shutdown()
        time.sleep(START_EVERY_S)


def _what_failed(address: str) -> str:
    if address != "local":
        return f"the Ray cluster at RAY_ADDRESS={address} cannot be reached"
    return f"Ray does not start here, tried {START_TRIES} times (it gives a node 30 s, too few on a very busy machine)"


def _knock(address: str) -> None:
    """OSError when nothing listens at host:port: Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()


def _do_nothing(*_: Any) -> None:
    """For Ray's thread that prints what it is told of dead workers, which we tell ourselves, and for its handlers."""


def head_answers(address: str | None = None) -> bool:
    """Whether the head of the cluster is there. Where it is not, most calls of Ray wait, and then end this process."""
    for _ in range(HEAD_TRIES):
        try:
            _knock(address or ray.get_runtime_context().gcs_address)
        except OSError:
            time.sleep(1)
        else:
            return True
    return False


@contextmanager
def watched_head() -> Iterator[None]:
    """While entered, end this process where the head is gone and a call of Ray that waits for it keeps it from ending.

    The head can go between a look at it and the call: Ray would end the process after a minute, with its own text.
    """
    address, over = ray.get_runtime_context().gcs_address, threading.Event()

    def watch() -> None:
        while not over.wait(HEAD_EVERY_S):
            if not head_answers(address) and not over.wait(TIME_TO_END_S):
                print(f"error: {HEAD_GONE}", file=sys.stderr, flush=True)
                os._exit(EnvironmentProblem.exit_code)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def disconnect(local: bool) -> None:
    """Leave the cluster; end it where it is this process's own. One whose head is gone is left as it stands.

    Ray would wait for that head, at the end of this process too, and after a minute end the process its own way.
    """
    if not ray.is_initialized():
        return
    if local or head_answers():
        ray.shutdown()
    else:
        leave_at_once()


def await_end_of_earlier(home: Home) -> None:
    """Return once no worker of an earlier call for the same folder lives: the cluster ends those of a dead driver."""
    end_s = time.monotonic() + EARLIER_TIMEOUT_S
    while any(actor["name"].startswith(home.name) for actor in ray.util.list_named_actors(all_namespaces=True)):
        if time.monotonic() > end_s:
            raise EnvironmentProblem(
                f"{home.sweep_dir}: workers of an earlier call still run on the cluster; wait for them to end"
            )
        time.sleep(0.2)
