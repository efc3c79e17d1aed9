"""Engines in processes of their own are one engine to the trial."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from harness.jobs import MemberDied
from harness.members import Answer, in_process
from harness.parts import build_parts
from harness.rollout.replicas import EngineReplicas
from harness.types import RolloutGroup
from harness.update import generate
from tests.harness.small import planned_trial


def responses(groups: list[RolloutGroup]) -> list[tuple[int, list[int], list[float]]]:
    """Log-probabilities to four places: their rounding depends on what else is in flight."""
    return [
        (group.prompt.index, rollout.token_ids_T.tolist(), rollout.behaviour_logprobs_T.round(4).tolist())
        for group in groups
        for rollout in group.rollouts
    ]


@pytest.mark.parametrize("replicas", [1, 3, 8])
def test_their_number_changes_no_response(replicas: int, tmp_path: Path) -> None:
    alone = build_parts(planned_trial().config, tmp_path)
    config = planned_trial(execution__engine_replicas=replicas).config
    with closing(build_parts(config, tmp_path, in_process)) as parts:
        assert isinstance(parts.engine, EngineReplicas) and parts.engine.members.size == replicas
        for first, count in ((0, 4), (4, 1)):  # fewer prompts than replicas too
            assert responses(generate(parts, first, count)) == responses(generate(alone, first, count))


def test_new_weights_arrive_whole_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.rollout.replicas.CHUNK_BYTES", 20_000)  # several chunks
    other = build_parts(planned_trial(model__seed=5).config, tmp_path)
    parts = build_parts(planned_trial(execution__engine_replicas=2).config, tmp_path, in_process)
    before = responses(generate(parts, 0, 4))
    parts.engine.update_weights(other.trainer.weights(), 7)
    groups = generate(parts, 0, 4)
    assert responses(groups) == responses(generate(other, 0, 4)) != before
    assert {v for group in groups for rollout in group.rollouts for v in rollout.versions_T.tolist()} == {7}
    # The trainer here still has its own.
    ours, theirs = (torch.cat([w.flatten() for _, w in p.trainer.weights()]) for p in (parts, other))
    assert not torch.equal(ours, theirs)


def test_a_dead_replica_is_told_from_one_that_fails(tmp_path: Path) -> None:
    class Dead:
        size = 1

        def start(self, member: int, method: str, *args: object) -> Answer:
            raise MemberDied("killed")

    with pytest.raises(MemberDied):
        EngineReplicas(Dead()).update_weights([], 1)  # type: ignore[arg-type]
