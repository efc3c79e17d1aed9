"""One Ray for every test that needs one, and W&B clients that know nothing of each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

import harness.tracking.wandb_sink as sink_module
from harness.cluster import connect
from harness.execution import ExecutionConfig


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """Its address."""
    connect(ExecutionConfig())
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture
def own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client that has read nobody's settings, in a process state that no earlier failure has marked."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "client"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setattr(sink_module, "_online_failed", False)
    monkeypatch.setattr(sink_module, "_warned", False)
    yield
    import wandb

    wandb.teardown()
