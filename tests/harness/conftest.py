"""One Ray for every test that needs one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray

from harness.cluster import connect
from harness.execution import ExecutionConfig


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Its address."""
    connect(ExecutionConfig())
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
