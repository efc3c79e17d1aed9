"""A cluster of several nodes on this machine, for tests of nodes that come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from harness.courier import UNSEEN_VARIABLE

STORE_BYTES = 100 * 1024**2


class Nodes:
    """A context manager: a head without room for trials, on which the driver is, and nodes as they are added."""

    def __init__(self, faults: Path) -> None:
        self._settings = {"FAULTS": str(faults / "faults.json")}
        self._cluster = Cluster()
        self._add(num_cpus=0, include_dashboard=False)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(
        self, cpus: int, sees_results: bool = True, environment: dict[str, str] | None = None, **resources: float
    ) -> Any:
        """A node; one that does not see the results folder has no other way to write there than through the driver."""
        unseen = {} if sees_results else {UNSEEN_VARIABLE: "1"}
        variables = self._settings | unseen | (environment or {})
        return self._add(num_cpus=cpus, resources=resources, env_vars=variables)

    def kill(self, node: Any) -> None:
        """End all its processes at once."""
        self._cluster.remove_node(node, allow_graceful=False)

    def _add(self, **settings: Any) -> Any:
        return self._cluster.add_node(wait=False, object_store_memory=STORE_BYTES, **settings)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()
