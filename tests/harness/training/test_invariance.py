"""Micro-batches change the gradient of no algorithm, neither the policy's nor the critic's (invariant 1)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from harness.algorithm.algorithm import Algorithm, Feedback
from harness.algorithm.config import AlgorithmConfig
from harness.algorithm.registry import ALGORITHMS, make_algorithm
from harness.config import OptimizerConfig
from harness.training.batch import make_train_batch, token_batch
from harness.training.critic import TorchCritic
from harness.training.torch import TorchModule, TorchTrainer
from harness.types import TrainBatch
from tests.harness.small import model, model_in_float64, ragged_groups

OPTIMIZER = OptimizerConfig(lr=1e-3)


def judged(name: str) -> tuple[Algorithm, TrainBatch]:
    """Twelve ragged responses with everything an algorithm can ask for, off policy so that clips bind, two steps."""
    settings = {"dr_grpo": {"constant_tokens": 5}, "gspo": {"clip_low": 0.2, "clip_high": 0.2}}.get(name, {})
    made = make_algorithm(TypeAdapter(AlgorithmConfig).validate_python({"name": name, "kl_coef": 0.1, **settings}))
    random = np.random.default_rng(1)
    tokens = token_batch(ragged_groups())
    num_tokens = len(tokens.token_ids_N)
    values_N, ref_N, proximal_N = random.normal(size=num_tokens), *random.uniform(-3.0, -1.5, (2, num_tokens))
    rewards_PG = random.normal(size=(3, 4))
    credit = made.credit(Feedback(rewards_PG, tokens, random.normal(size=3), ref_N, values_N))
    batch = make_train_batch(
        tokens,
        credit.advantages_N,
        made.loss_weights,
        12,
        ref_logprobs_N=ref_N,
        proximal_logprobs_N=proximal_N,
        rollout_values_N=values_N,
        value_targets_N=credit.value_targets_N,
    )
    return made, batch


def gradient(module: TorchModule, name: str) -> torch.Tensor:
    """What the optimizer is given."""
    seen: list[torch.Tensor] = []
    module.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([parameter.grad.flatten().double() for parameter in module.parameters]))
    )
    made, batch = judged(name)
    if isinstance(module, TorchCritic):
        assert made.value_loss is not None
        module.step(batch, made.value_loss, 1e-3)
    else:
        assert isinstance(module, TorchTrainer)
        module.step(batch, made.loss, 1e-3)
    return seen[0]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_of_the_policy(name: str, dtype: torch.dtype, tolerance: float) -> None:
    def policy_gradient(micro: int, longest_shared_row: int) -> torch.Tensor:
        policy = model_in_float64() if dtype == torch.float64 else model()
        return gradient(TorchTrainer(policy, OPTIMIZER, micro, 0.7, longest_shared_row), name)

    expected = policy_gradient(12, 0)
    for micro, longest_shared_row in ((12, 1024), (1, 1024), (5, 14)):
        assert (policy_gradient(micro, longest_shared_row) - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize("name", ["ppo", "ppo_ewma"])
def test_of_the_critic(name: str) -> None:
    def critic_gradient(micro: int, longest_shared_row: int) -> torch.Tensor:
        critic = TorchCritic(model_in_float64(), OPTIMIZER, micro, longest_shared_row)
        torch.nn.init.ones_(critic.model.get_output_embeddings().weight)  # else the trunk has no gradient yet
        return gradient(critic, name)

    expected = critic_gradient(12, 0)
    for micro, longest_shared_row in ((12, 1024), (1, 1024), (5, 14)):
        assert (critic_gradient(micro, longest_shared_row) - expected).norm() < 1e-10 * expected.norm()
