"""What tests of faults that take seconds have, for those that take minutes."""

from __future__ import annotations

from tests.harness.conftest import cluster, driver

__all__ = ["cluster", "driver"]
