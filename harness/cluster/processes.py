"""The processes of a trial beside its worker, in the placement group that the worker lives in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from harness.errors import EnvironmentProblem
from harness.execution import Bundle, ExecutionConfig, Role
from harness.jobs import MemberDied
from harness.members import Spawn
from harness.worker import Member, Worker


def spawner(execution: ExecutionConfig) -> Spawn:
    """Starts the other processes of a trial, in a worker, within the placement group that the worker lives in."""

    def spawn(role: Role, of: str, args_M: Sequence[tuple[Any, ...]]) -> _RayMembers:
        group = get_current_placement_group()
        if group is None:
            raise EnvironmentProblem(f"a trial with processes of its own ({role}) runs in: python -m harness sweep")
        worker = Worker.current
        assert worker is not None
        actors = []
        for number, args in enumerate(args_M):
            bundle, takes = execution.place(role, number)
            member: Any = ray.remote(Member).options(**options_in(group, bundle, takes))
            actors.append(member.remote(replace(worker.setup, gpus=takes.gpus), worker.results, of, args))
        return _RayMembers(actors)

    return spawn


@dataclass(frozen=True)
class _RayMembers:
    """See harness.members.Members."""

    actors: list[Any]

    @property
    def size(self) -> int:
        return len(self.actors)

    def start(self, member: int, method: str, *args: Any) -> Answer:
        return Answer(self.actors[member].call.remote(method, args))

    def share(self, value: Any) -> _Shared:
        return _Shared(ray.put(value))

    def close(self) -> None:
        while self.actors:
            ray.kill(self.actors.pop())


@dataclass(frozen=True)
class Answer:
    """See harness.members.Answer."""

    reference: Any

    def done(self) -> bool:
        return bool(ray.wait([self.reference], timeout=0)[0])

    def result(self) -> Any:
        try:
            return ray.get(self.reference)
        except RayTaskError as error:
            raise error.cause from error
        except RayError as error:
            raise MemberDied(" ".join(str(error).split())) from error


@dataclass(frozen=True)
class _Shared:
    """See harness.members.Shared."""

    reference: Any

    def get(self) -> Any:
        return ray.get(self.reference)


def options_in(group: Any, bundle: int, takes: Bundle) -> dict[str, Any]:
    place = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
    return {
        "num_cpus": takes.cpus,
        "num_gpus": takes.gpus,
        "scheduling_strategy": place,
        "max_restarts": 0,
        "max_task_retries": 0,
    }
