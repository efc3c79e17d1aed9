"""A whole trial over two ranks: the numbers of the trial in one process, and a dead rank is a death, not a wait."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.evaluation import evaluate
from harness.jobs import MemberDied
from harness.parts import Parts, build_parts
from harness.run_dir import RunDir
from harness.training.ranks import DeepSpeedCritic, DeepSpeedTrainer, FrozenOnRanks
from harness.update import Progress, run_update
from tests.harness.processes import Processes, spawn_processes
from tests.harness.small import LEARNS, planned_trial

# Critic, reference, moving average and two steps a batch, the noise of the first measured and split.
CHANGES: dict[str, Any] = {
    **LEARNS,
    "algorithm": {"name": "ppo_ewma", "kl_coef": 0.1, "measure_move": True},
    "statistics__every_samples": 1,
}


def parts_of(folder: Path, ranks: int, **changes: Any) -> Parts:
    """Two optimizer steps a batch whatever the ranks; without any, the trainer torch."""
    execution = {"trainer": "deepspeed", "ranks": ranks} if ranks else {}
    batch = {"num_prompts": 4, "group_size": 4, "mini_batch_size": 8 // max(ranks, 1)}
    config = planned_trial(execution=execution, batch=batch, **CHANGES, **changes).config
    return build_parts(config, folder, spawn_processes)


def updates(parts: Parts, progress: Progress, count: int) -> list[Mapping[str, float]]:
    return [run_update(parts, progress).metrics for _ in range(count)]


def score(parts: Parts) -> Mapping[str, float]:
    return evaluate(
        parts.eval_prompts, parts.eval_answers, parts.scorer, parts.tokenizer, parts.engine, parts.trainer,
        parts.eval_sampling(1),
    )  # fmt: skip


@pytest.mark.slow
def test_a_trial_over_two_ranks_is_the_trial_in_one_process(tmp_path: Path) -> None:
    alone, progress = parts_of(tmp_path, ranks=0), Progress()
    expected, expected_score = updates(alone, progress, 2), score(alone)
    with closing(parts_of(tmp_path, ranks=2)) as parts:
        assert isinstance(parts.trainer, DeepSpeedTrainer) and isinstance(parts.critic, DeepSpeedCritic)
        assert isinstance(parts.reference, FrozenOnRanks)
        found, found_score = updates(parts, Progress(), 2), score(parts)
        assert [metrics.keys() for metrics in found] == [metrics.keys() for metrics in expected]
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, rel=2e-3, abs=1e-5)
        assert {"grad/noise_within_trace", "grad/critic_noise_trace", "policy/update_norm"} <= found[0].keys()
        assert found_score == pytest.approx(expected_score, rel=1e-3)
        goes_on_from_its_checkpoint(parts, tmp_path)
        dies_when_a_rank_does(parts)


def goes_on_from_its_checkpoint(parts: Parts, folder: Path) -> None:
    """Written, read back, taken up by the same ranks: the same update once more."""
    run = RunDir(folder / "trial")
    run.save_checkpoint(parts.state(), 32)
    first = updates(parts, Progress(samples_trained=32, prompts_used=8), 1)
    checkpoint = run.load_checkpoint()
    assert checkpoint is not None
    parts.load_state(checkpoint)
    parts.engine.update_weights(parts.trainer.weights(), 0)
    assert updates(parts, Progress(samples_trained=32, prompts_used=8), 1) == first


def dies_when_a_rank_does(parts: Parts) -> None:
    assert isinstance(parts.trainer, DeepSpeedTrainer) and isinstance(parts.trainer.members, Processes)
    parts.trainer.members.members[1].process.kill()
    started_s = time.monotonic()
    with pytest.raises(MemberDied):
        updates(parts, Progress(), 1)
    assert time.monotonic() - started_s < 30
