"""Small parts for stories about the core: the embedded model, untrained, on short strings of digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from harness.config import ModelConfig, SweepConfig
from harness.models import encode_prompts, load_model, load_tokenizer
from harness.plan import PlannedTrial, make_plan
from harness.tasks.digits import ReverseDigits
from harness.types import Prompt, Rollout, RolloutGroup

TASK = ReverseDigits(3)
MODEL = ModelConfig(name="tiny-llama")
TOKENIZER = load_tokenizer(MODEL, TASK.alphabet)
# Two digits and a short supervised start: right half of the time, so there is a signal from the first update.
LEARNS: dict[str, Any] = {
    "task__num_digits": 2,
    "evaluation__num_prompts": 10,
    "model__warm_start": {"steps": 20, "lr": 3e-3},
}


def model(seed: int = 0) -> Any:
    return load_model(MODEL.model_copy(update={"seed": seed}), TOKENIZER)


def model_in_float64() -> Any:
    """A GPT-2: learned positions, other masks, and unlike Llama no part that computes in float32 whatever the type."""
    config = GPT2Config(
        vocab_size=len(TOKENIZER), n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.1
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).double().eval()


def ragged_groups(group_size: int = 4) -> list[RolloutGroup]:
    """Three prompts of different lengths with responses of 1 to 6 tokens and made-up behaviour log-probs."""
    random = np.random.default_rng(0)
    groups = []
    for index, text in enumerate(["12=", "40771=", "3="]):
        prompt = Prompt(index, text, text[-2::-1])
        rollouts = tuple(_rollout(random, length) for length in random.integers(1, 7, group_size))
        groups.append(RolloutGroup(prompt, encode_prompts(TOKENIZER, [prompt])[0], rollouts))
    return groups


def _rollout(random: np.random.Generator, length: int) -> Rollout:
    tokens = random.integers(2, 12, length)
    return Rollout(
        tokens, -random.uniform(1.5, 3.0, length).astype(np.float32), False, np.zeros(length, dtype=np.int64)
    )


def planned_trial(**changes: Any) -> PlannedTrial:
    """A trial of seconds: 3 digits, 4 prompts of 4 responses; `changes` are dotted names with __ for the dots."""
    sweep: dict[str, Any] = {
        "sweep": "small",
        "question": "does it run?",
        "task": {"name": "reverse_digits", "num_digits": 3},
        "batch": {"num_prompts": 4, "group_size": 4},
        "algorithm": {"name": "grpo"},
        "optimizer": {"lr": 1e-3},
        "evaluation": {"every_samples": 32, "num_prompts": 16, "metric": "eval/expected_score"},
        "tracking": {"wandb": False},
        "budget_samples": 128,
        "seeds": [changes.pop("seed", 0)],
    }
    for name, value in changes.items():
        section: dict[str, Any] = sweep
        *path, last = name.split("__")
        for key in path:
            section = section.setdefault(key, {})
        section[last] = value
    batch = {"batch.num_prompts": sweep["batch"]["num_prompts"]}
    return make_plan(SweepConfig.model_validate(sweep | {"reference": batch, "arms": [batch]})).trials[0]


def trial_dir(root: Path, name: str = "trial") -> Path:
    return root / "small" / "trials" / name
