"""One Ray for every test that needs one, and sweeps in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from harness.cluster.connection import connect
from harness.execution import ExecutionConfig

LIMIT_S = 600.0  # of what takes seconds on a quiet machine
Driver = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Its address."""
    connect(ExecutionConfig())
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture
def driver() -> Iterator[Driver]:
    """Starts sweeps of fault trials in processes of their own; none outlives its test."""
    started = []

    def start(
        results: Path, num_trials: int, execution: dict[str, Any] | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.harness.fault_driver", str(results), str(num_trials)]
        process = subprocess.Popen(
            [*command, json.dumps(execution or {})],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | environment,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
