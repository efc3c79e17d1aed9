"""The trainer deepspeed does what the trainer torch does: on one rank and on two, at every ZeRO stage, for real."""

from __future__ import annotations

import importlib.metadata
import ipaddress
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from harness.advise.config import Moments
from harness.config import TrialConfig
from harness.members import Members
from harness.moments import moved
from harness.training.batch import consecutive
from harness.training.critic import TorchCritic
from harness.training.ranks import DeepSpeedCritic, DeepSpeedTrainer, FrozenOnRanks, start_ranks
from harness.training.torch import TorchTrainer
from harness.training.trainer import Diverged, TokenLoss, TokenTensors
from harness.types import NoiseProbe, TrainBatch, UpdateStats
from tests.harness.processes import Processes as Spawned
from tests.harness.processes import listening_at, spawn_processes
from tests.harness.small import TOKENIZER, model, model_in_float64, planned_trial
from tests.harness.training.test_invariance import judged

STAGES = (0, 1, 2, 3)
LR = 1e-3
SIGNS = NoiseProbe(np.array([1.0, -1.0, -1.0, 1.0] * 3))


def config_of(stage: int = 2, ranks: int = 2, micro: int = 6, dtype: str = "float32", **changes: Any) -> TrialConfig:
    """Three prompts of four responses; every parameter is sharded at stage 3, however small."""
    settings = {"zero_stage": stage, "whole_below": 0, **changes.pop("deepspeed", {})}
    execution = {"trainer": "deepspeed", "ranks": ranks, "deepspeed": settings}
    return planned_trial(
        execution=execution,
        batch={"num_prompts": 3, "group_size": 4, "micro_batch_size_per_gpu": micro},
        model__dtype=dtype,
        sampling__temperature=0.7,
        algorithm__name="ppo",  # brings a critic with its optimizer
        budget_samples=24,
        **changes,
    ).config


@dataclass(frozen=True)
class Processes:
    """Members of one and of two ranks. A trainer takes the place of the one before on the same ranks."""

    by_ranks: dict[int, Members]
    folder: Path

    def trainer(self, stage: int = 2, ranks: int = 2, **changes: Any) -> DeepSpeedTrainer:
        return DeepSpeedTrainer(self.by_ranks[ranks], config_of(stage, ranks, **changes), self.folder)

    def critic(self, stage: int = 2, ranks: int = 2, **changes: Any) -> DeepSpeedCritic:
        return DeepSpeedCritic(self.by_ranks[ranks], config_of(stage, ranks, **changes), self.folder)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    starting = {  # all of them at once
        ranks: spawn_processes("rank", "harness.training.deepspeed:Rank", [(rank, ranks) for rank in range(ranks)])
        for ranks in (1, 2)
    }
    by_ranks = {ranks: start_ranks(config_of(ranks=ranks), lambda *_: starting[ranks]) for ranks in starting}  # noqa: B023
    yield Processes(by_ranks, tmp_path_factory.mktemp("results"))
    for members in by_ranks.values():
        members.close()


def reference(micro: int = 12, **changes: Any) -> TorchTrainer:
    config = config_of(**changes)
    return TorchTrainer(model(), config.optimizer, micro, 0.7, config.execution.share_prompt_up_to_tokens)


def reference_critic() -> TorchCritic:
    config = config_of()
    assert config.critic_optimizer is not None
    return TorchCritic(model(), config.critic_optimizer, 12, config.execution.share_prompt_up_to_tokens)


def weights(state: dict[str, Any]) -> torch.Tensor:
    return torch.cat([weight.flatten() for weight in state["model"].values()])


def first_gradient(state: dict[str, Any]) -> torch.Tensor:
    """After one step the first moment is (1 - beta1) times the gradient, as the optimizer was given it."""
    return torch.cat([moments["exp_avg"].flatten() for moments in state["optimizer"]["state"].values()]) / 0.1


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def assert_same_training(ours: Any, theirs: Any, batch: TrainBatch, loss: Any) -> None:
    """The first gradient, its norm and the loss; the displacement after ten updates."""
    start = weights(theirs.state())
    assert torch.equal(weights(ours.state()), start)
    found, expected = (trainer.step(batch, loss, LR) for trainer in (ours, theirs))
    assert relative(first_gradient(ours.state()), first_gradient(theirs.state())) < 1e-5
    assert found.metrics.keys() == expected.metrics.keys()
    for name, value in expected.metrics.items():
        assert found.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    for _ in range(9):
        ours.step(batch, loss, LR)
        theirs.step(batch, loss, LR)
    assert relative(weights(ours.state()) - start, weights(theirs.state()) - start) < 1e-3


@pytest.mark.parametrize("stage", STAGES)
def test_the_work_is_done_by_deepspeed(processes: Processes, stage: int) -> None:
    optimizer = {
        0: "torch.optim.adam.Adam",
        1: "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
        2: "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer",
        3: "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3",
    }
    assert processes.trainer(stage).describe() == {
        "engine": "deepspeed.runtime.engine.DeepSpeedEngine",
        "optimizer": optimizer[stage],
        "deepspeed": importlib.metadata.version("deepspeed"),
        "backend": "gloo",
        "ranks": 2,
        "stage": stage,
    }


def test_ranks_of_one_node_listen_on_the_loopback_only(processes: Processes) -> None:
    members = cast(Spawned, processes.by_ranks[2]).members
    at = [listening_at(member.process.pid or 0) for member in members]
    assert at[0], "the meeting point of the ranks"
    assert {ip for ips in at for ip in ips if not ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback} == set()


@pytest.mark.parametrize(("stage", "micro"), [(0, 6), (1, 3), (2, 2), (3, 3)])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_it_trains_as_torch_does(processes: Processes, algorithm: str, stage: int, micro: int) -> None:
    made, batch = judged(algorithm)
    assert_same_training(processes.trainer(stage, micro=micro), reference(), batch, made.loss)


@pytest.mark.parametrize("stage", STAGES)
def test_the_critic_trains_as_torchs_does(processes: Processes, stage: int) -> None:
    made, batch = judged("ppo")
    ours, theirs = processes.critic(stage, micro=3), reference_critic()
    assert (ours.values(batch) == 0).all()
    assert_same_training(ours, theirs, batch, made.value_loss)
    np.testing.assert_allclose(ours.values(batch), theirs.values(batch), atol=1e-4)
    assert theirs.values(batch).std() > 0.01


@pytest.mark.parametrize("stage", STAGES)
def test_one_rank_is_a_trainer_too(processes: Processes, stage: int) -> None:
    made, batch = judged("grpo")
    assert_same_training(processes.trainer(stage, ranks=1, micro=4), reference(), batch, made.loss)


@pytest.mark.parametrize(("ranks", "micro"), [(1, 12), (1, 1), (1, 4), (2, 1), (2, 2), (2, 6)])
def test_micro_batches_and_ranks_change_no_gradient(processes: Processes, ranks: int, micro: int) -> None:
    made, batch = judged("grpo")
    ours, theirs = processes.trainer(2, ranks, micro=micro), reference()
    stats = ours.step(batch, made.loss, LR)
    theirs.step(batch, made.loss, LR)
    assert (stats.optimizer_steps, stats.backward_passes) == (1, 12 // ranks // micro)
    assert relative(first_gradient(ours.state()), first_gradient(theirs.state())) < 1e-5


@pytest.mark.parametrize("stage", STAGES)
def test_a_batch_that_does_not_divide_is_trained_on_as_it_is(processes: Processes, stage: int) -> None:
    # Five responses in twos: three on the first rank, two on the second, which takes a pass that weighs nothing.
    # Then one response alone, with the second rank idle.
    made, whole = judged("grpo")
    ours, theirs = processes.trainer(stage, micro=2), reference()
    for size, passes in ((5, 2), (1, 1)):
        batch = consecutive(whole, 0, size)
        found, expected = (trainer.step(batch, made.loss, LR) for trainer in (ours, theirs))
        assert found.backward_passes == passes
        assert found.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)
        moments = [[s["exp_avg"] for s in t.state()["optimizer"]["state"].values()] for t in (ours, theirs)]
        assert relative(*(torch.cat([moment.flatten() for moment in m]) for m in moments)) < 1e-5


@pytest.mark.parametrize("stage", STAGES)
def test_the_norm_is_that_before_clipping(processes: Processes, stage: int) -> None:
    made, batch = judged("grpo")
    ours, theirs = (make(optimizer__clip_norm=0.25) for make in (lambda **c: processes.trainer(stage, **c), reference))
    norms = [trainer.step(batch, made.loss, LR).metrics["grad/actor_norm"] for trainer in (ours, theirs)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5) and norms[1] > 1
    assert first_gradient(ours.state()).norm().item() == pytest.approx(0.25, rel=1e-5)
    # The norm of this step, not of the one before.
    half = replace(batch, loss_weights_N=batch.loss_weights_N / 2)
    norms = [trainer.step(half, made.loss, LR).metrics["grad/actor_norm"] for trainer in (ours, theirs)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_the_optimizer_is_the_configured_one(processes: Processes) -> None:
    changes = {
        "optimizer__name": "adamw",
        "optimizer__betas": [0.5, 0.8],
        "optimizer__eps": 1e-2,
        "optimizer__weight_decay": 0.3,
    }
    made, batch = judged("grpo")
    for stage in STAGES:
        ours, theirs = processes.trainer(stage, **changes), reference(**changes)
        start = weights(theirs.state())
        for lr in (1e-3, 2e-3, 5e-4):  # the rate of each step is its own
            ours.step(batch, made.loss, lr)
            theirs.step(batch, made.loss, lr)
        assert relative(weights(ours.state()) - start, weights(theirs.state()) - start) < 1e-4


def not_finite(tokens: TokenTensors) -> TokenLoss:
    return TokenLoss(tokens.current_N * math.nan, {})


def infinite_slope(tokens: TokenTensors) -> TokenLoss:
    """A loss of 0 whose gradient is not finite."""
    return TokenLoss((tokens.current_N - tokens.current_N.detach()).abs().sqrt(), {})


@pytest.mark.parametrize("stage", STAGES)
def test_a_step_that_is_not_finite_leaves_the_weights_alone(processes: Processes, stage: int) -> None:
    made, batch = judged("grpo")
    ours = processes.trainer(stage)
    ours.step(batch, made.loss, LR)
    before = weights(ours.state())
    with pytest.raises(Diverged, match="actor: loss is 0.0, gradient norm is (nan|inf)"):
        ours.step(batch, infinite_slope, LR)
    with pytest.raises(Diverged, match="actor: loss is nan"):
        ours.step(batch, not_finite, LR)
    assert torch.equal(weights(ours.state()), before)
    engine = torch.cat([weight.flatten() for _, weight in ours.weights()])
    assert torch.equal(engine, before)


@pytest.mark.parametrize("stage", STAGES)
def test_a_state_goes_on_where_it_was_taken(processes: Processes, stage: int) -> None:
    made, batch = judged("grpo")
    first = processes.trainer(stage)
    for _ in range(2):
        first.step(batch, made.loss, LR)
    state = first.state()
    expected = [first.step(batch, made.loss, LR).metrics for _ in range(2)]
    end = weights(first.state())
    again = processes.trainer(stage, model__seed=5)
    again.load_state(state)
    assert [again.step(batch, made.loss, LR).metrics for _ in range(2)] == expected
    assert torch.equal(weights(again.state()), end)


@pytest.mark.parametrize(("one", "other"), [((3, 2), (2, 1)), ((2, 1), (3, 2)), ((0, 1), (1, 2)), ((1, 2), (0, 1))])
def test_a_state_fits_any_stage_and_number_of_ranks(
    processes: Processes, one: tuple[int, int], other: tuple[int, int]
) -> None:
    made, batch = judged("grpo")
    first = processes.trainer(*one)
    first.step(batch, made.loss, LR)
    state = first.state()
    second = processes.trainer(*other, model__seed=5)
    second.load_state(state)
    assert_equal_states(second.state(), state)
    found, expected = (trainer.step(batch, made.loss, LR).metrics for trainer in (second, first))
    assert found == pytest.approx(expected, rel=1e-5)
    assert relative(weights(second.state()) - weights(state), weights(first.state()) - weights(state)) < 1e-3


def assert_equal_states(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert torch.equal(weights(one), weights(other)) and one["model"].keys() == other["model"].keys()
    for number, moments in other["optimizer"]["state"].items():
        for name, tensor in moments.items():
            assert torch.equal(one["optimizer"]["state"][number][name], tensor)


def test_a_state_moves_between_the_trainers(processes: Processes) -> None:
    made, batch = judged("grpo")
    ours, theirs = processes.trainer(3), reference(model__seed=0)
    ours.step(batch, made.loss, LR)
    theirs.load_state(ours.state())
    for _ in range(2):
        found, expected = (trainer.step(batch, made.loss, LR).metrics for trainer in (ours, theirs))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    ours.load_state(theirs.state())
    assert_equal_states(ours.state(), theirs.state())
    ours.load_state(processes.trainer(1, ranks=1).state())  # from before the first step
    assert ours.state()["optimizer"]["state"] == {}


@pytest.mark.parametrize("moments", ["rescaled", "fresh"])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_branch_starts_alike_on_both_trainers(processes: Processes, stage: int, moments: Moments) -> None:
    made, batch = judged("grpo")
    ours, theirs = processes.trainer(stage), reference()
    for _ in range(4):
        theirs.step(batch, made.loss, LR)
    state = theirs.state()
    before = weights(state)
    adam = moved(state["optimizer"], config_of().optimizer, moments, 2.0, 12, 30.0)
    for trainer in (ours, theirs):
        trainer.load_state({**state, "optimizer": adam})
    assert_equal_states(ours.state(), {**state, "optimizer": adam})
    found, expected = (trainer.step(batch, made.loss, LR).metrics for trainer in (ours, theirs))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert relative(weights(ours.state()) - before, weights(theirs.state()) - before) < 1e-3


def blocks_of(stats: UpdateStats) -> list[float]:
    assert stats.block_norms is not None and stats.block_norms.responses == 4
    assert stats.block_norms.signed_sq is not None
    return [*stats.block_norms.norms_sq_K, stats.block_norms.signed_sq]


@pytest.mark.parametrize("stage", STAGES)
def test_blocks_are_measured_as_torch_does(processes: Processes, stage: int) -> None:
    # Three groups of four: two blocks on the first rank, one on the second and a pass that weighs nothing.
    made, batch = judged("grpo")
    ours, theirs = processes.trainer(stage), reference(micro=6)
    found, expected = (trainer.step(batch, made.loss, LR, SIGNS) for trainer in (ours, theirs))
    assert found.backward_passes == 2
    assert blocks_of(found) == pytest.approx(blocks_of(expected), rel=1e-5)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)
    assert found.metrics["grad/actor_epsilon_frac"] > 0
    assert relative(first_gradient(ours.state()), first_gradient(theirs.state())) < 1e-5


def test_without_two_equal_blocks_of_whole_groups_none_is_measured(processes: Processes) -> None:
    made, batch = judged("grpo")
    stats = processes.trainer(2, micro=3).step(batch, made.loss, LR, SIGNS)
    assert stats.block_norms is None and stats.backward_passes == 2
    assert stats.metrics["grad/actor_applied_norm"] > 0


@pytest.mark.parametrize("stage", STAGES)
def test_weights_that_are_used_twice_have_one_gradient(processes: Processes, stage: int, tmp_path: Path) -> None:
    tied = model_in_float64().float()
    tied.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    made, batch = judged("grpo")
    ours = processes.trainer(stage, model__name=str(tmp_path))
    theirs = TorchTrainer(tied, config_of().optimizer, 6, 0.7, 1024)
    found, expected = (trainer.step(batch, made.loss, LR, SIGNS) for trainer in (ours, theirs))
    assert blocks_of(found) == pytest.approx(blocks_of(expected), rel=1e-5)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)
    assert relative(first_gradient(ours.state()), first_gradient(theirs.state())) < 1e-5
    state = ours.state()
    assert {"lm_head.weight", "transformer.wte.weight"} <= state["model"].keys() == theirs.state()["model"].keys()
    theirs.load_state(state)
    again = processes.trainer(stage, model__name=str(tmp_path))
    again.load_state(theirs.state())
    assert_equal_states(again.state(), state)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_engine_is_given_the_trained_weights(
    processes: Processes, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.training.ranks.MESSAGE_ELEMENTS", 5000)  # less than a matrix: many messages
    made, batch = judged("grpo")
    ours, theirs = processes.trainer(stage), reference()
    for trainer in (ours, theirs):
        trainer.step(batch, made.loss, LR)
    given, expected = dict(ours.weights()), dict(theirs.weights())
    assert list(given) == list(expected)
    for name, weight in ours.state()["model"].items():
        assert torch.equal(given[name], weight) and given[name].shape == expected[name].shape
    for found_T, expected_T in zip(ours.logprobs(batch), theirs.logprobs(batch), strict=True):
        np.testing.assert_allclose(found_T, expected_T, atol=2e-3)


def test_the_reference_stays(processes: Processes) -> None:
    made, batch = judged("grpo")
    frozen, ours = FrozenOnRanks(processes.by_ranks[2], config_of(), processes.folder), processes.trainer(3)
    before = ours.logprobs(batch)
    ours.step(batch, made.loss, LR)
    for found_T, expected_T in zip(frozen(batch), before, strict=True):
        np.testing.assert_allclose(found_T, expected_T, atol=1e-5)
    assert not np.allclose(np.concatenate(ours.logprobs(batch)), np.concatenate(before), atol=1e-3)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_keeps_its_weights_in_float32(processes: Processes, stage: int) -> None:
    # Four steps of 4e-6 are lost on most weights in bfloat16, which has eight bits; those in float32 add them up.
    made, batch = judged("grpo")
    ours, theirs = processes.trainer(stage, dtype="bfloat16", micro=3), reference()
    start = weights(ours.state())
    for trainer in (ours, theirs):
        trainer.step(batch, made.loss, 4e-6)
    assert relative(first_gradient(ours.state()), first_gradient(theirs.state())) < 0.03
    for _ in range(3):
        ours.step(batch, made.loss, 4e-6)
    moved = (weights(ours.state()) - start).abs()
    assert 1.2e-5 < moved.max().item() < 1.7e-5
    engine = torch.cat([weight.flatten() for _, weight in ours.weights()])
    assert engine.dtype == torch.bfloat16 and (engine.float() == start).double().mean().item() > 0.8
    state = ours.state()
    again = processes.trainer(stage, dtype="bfloat16", micro=3)
    again.load_state(state)
    assert_equal_states(again.state(), state)


@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        (2, {"activation_checkpointing": True}),
        (3, {"activation_checkpointing": True}),
        (1, {"offload_optimizer": True}),
        (2, {"offload_optimizer": True}),
        (3, {"offload_optimizer": True, "offload_parameters": True}),
    ],
)
def test_memory_savings_change_no_gradient(processes: Processes, stage: int, settings: dict[str, bool]) -> None:
    made, batch = judged("grpo")
    for micro, probe in ((6, SIGNS), (2, None)):
        ours, theirs = processes.trainer(stage, deepspeed=settings, micro=micro), reference(micro=6)
        found, expected = (trainer.step(batch, made.loss, LR, probe) for trainer in (ours, theirs))
        assert found.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)
        assert relative(first_gradient(ours.state()), first_gradient(theirs.state())) < 1e-5
        state = ours.state()
        expected = ours.step(batch, made.loss, LR)
        again = processes.trainer(stage, deepspeed=settings, micro=micro, model__seed=5)
        again.load_state(state)
        assert again.step(batch, made.loss, LR).metrics == expected.metrics
