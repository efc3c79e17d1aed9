"""How many trials fit on a cluster. Pure arithmetic of what nodes have and what the processes of a trial take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import EnvironmentProblem
from harness.execution import Bundle, ExecutionConfig

Node = Mapping[str, float]
ROUNDING = 1e-9


@dataclass
class _Room:
    """What is left of a node; gpus holds the free share of each."""

    cpus: float
    gpus: list[float] = field(default_factory=list)
    custom: dict[str, float] = field(default_factory=dict)

    def take(self, bundle: Bundle) -> bool:
        """Take the bundle out of the room; False, and nothing taken, where it does not fit."""
        share, count = (bundle.gpus, 1) if bundle.gpus <= 1 else (1.0, round(bundle.gpus))
        free = [index for index, left in enumerate(self.gpus) if left + ROUNDING >= share]
        if self.cpus + ROUNDING < bundle.cpus or (share and len(free) < count):
            return False
        if any(self.custom.get(name, 0.0) + ROUNDING < amount for name, amount in bundle.custom):
            return False
        self.cpus -= bundle.cpus
        for name, amount in bundle.custom:
            self.custom[name] -= amount
        for index in free[:count]:
            self.gpus[index] -= share
        return True


def num_fitting(nodes: Sequence[Node], execution: ExecutionConfig) -> int:
    """How many trials the nodes can hold at once. EnvironmentProblem that names the short resource when none.

    >>> two = ExecutionConfig(threads=2)
    >>> num_fitting([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 3.0}], two)
    5
    >>> num_fitting([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 3.0}], two.model_copy(update={"gpus_per_rank": 0.5}))
    2

    Two ranks and an engine of its own take three bundles; the second trial lacks one:

    >>> three = ExecutionConfig(trainer="deepspeed", ranks=2, engine_replicas=1, layout="separate")
    >>> num_fitting([{"CPU": 3.0}, {"CPU": 2.0}], three)
    1

    A custom resource that one of the nodes has twice:

    >>> num_fitting([{"CPU": 8.0}, {"CPU": 8.0, "fast": 2.0}], ExecutionConfig(resources={"fast": 1}))
    2
    """
    rooms = [_Room(node.get("CPU", 0.0), [1.0] * int(node.get("GPU", 0)), dict(node)) for node in nodes]
    largest_first = sorted(execution.bundles, key=lambda bundle: (-bundle.gpus, -bundle.cpus))
    fitting = 0
    while all(any(room.take(bundle) for room in rooms) for bundle in largest_first):
        fitting += 1
    if not fitting:
        raise EnvironmentProblem(_what_is_short(nodes, execution))
    return fitting


def _what_is_short(nodes: Sequence[Node], execution: ExecutionConfig) -> str:
    bundles = execution.bundles
    most_cpus = max((int(node.get("CPU", 0)) for node in nodes), default=0)
    for name in ("threads", "reward_workers"):
        cpus = getattr(execution, name)
        if most_cpus < cpus:
            return (
                f"CPU: a worker needs {cpus} (execution.{name}), the largest node has {most_cpus}; "
                f"set execution.{name} to at most {max(most_cpus, 1)}"
            )
    most_gpus = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
    for name in ("gpus_per_rank", "gpus_per_engine"):
        gpus = getattr(execution, name)
        if most_gpus < gpus:
            return (
                f"GPU: a worker needs {gpus:g} (execution.{name}), the largest node has {most_gpus:g}; "
                f"set execution.{name} to at most {most_gpus:g}"
            )
    for name, amount in execution.resources.items():
        most = max((node.get(name, 0.0) for node in nodes), default=0.0)
        if most < amount:
            return (
                f"{name}: a worker needs {amount:g} (execution.resources), the largest node has {most:g}; nodes state "
                f"what they have when they join the cluster (ray start --resources)"
            )
    if len(bundles) == 1:
        custom = "".join(f" and {amount:g} {name}" for name, amount in execution.resources.items())
        return (
            f"no node has {execution.threads} CPUs and {execution.gpus_per_rank:g} GPUs{custom} together, "
            f"as a worker needs"
        )
    needs = {"CPU": sum(b.cpus for b in bundles), "GPU": sum(b.gpus for b in bundles)}
    needs |= {name: amount * len(bundles) for name, amount in execution.resources.items()}
    for resource, needed in needs.items():
        available = sum(node.get(resource, 0.0) for node in nodes)
        if available < needed:
            return (
                f"{resource}: a trial needs {needed:g} for its {len(bundles)} processes (execution.ranks, "
                f"execution.engine_replicas, execution.layout), the cluster has {available:g}"
            )
    return f"no node of the cluster has room for all of a trial's {len(bundles)} processes, each with its CPUs and GPUs"
