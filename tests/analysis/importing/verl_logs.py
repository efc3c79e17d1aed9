"""Writes what verl would have logged of a run whose truth is known: console logs and the JSONL of its file logger."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pprint import pformat
from typing import Any

import numpy as np

Score = Callable[[float], float]


@dataclass(frozen=True)
class VerlRun:
    """A run of verl as of version 0.5: steps from 1, `timing_s/`, full digits, validation every `test_freq` steps.

    score: of the policy after N responses. score_sd: of a row's or a validation's mean. step_s: what a row takes.
    """

    num_prompts: int = 64
    group_size: int = 8
    steps: int = 20
    score: Score = lambda samples: samples / (samples + 4000)
    score_sd: float = 0.0
    lr: float = 1e-6
    step_s: float = 10.0
    test_freq: int = 5
    seed: int = 0
    algorithm: str = "grpo"
    mini_batch: int | None = None

    def config(self) -> dict[str, Any]:
        """The part of the resolved configuration that says what the run was."""
        actor: dict[str, Any] = {"optim": {"lr": self.lr}, "ppo_mini_batch_size": self.mini_batch or self.num_prompts}
        actor |= {"ppo_epochs": 1, "clip_ratio": 0.2, "use_kl_loss": False}
        rollout = {
            "name": "vllm",
            "n": self.group_size,
            "prompt_length": 512,
            "temperature": 1.0,
            "val_kwargs": {"n": 1},
        }
        return {
            "actor_rollout_ref": {"actor": actor, "model": {"path": "models/small"}, "rollout": rollout},
            "algorithm": {"adv_estimator": self.algorithm, "kl_ctrl": {"kl_coef": 0.001}},
            "data": {"train_batch_size": self.num_prompts, "max_response_length": 256},
            "trainer": {"n_gpus_per_node": 1, "nnodes": 1, "save_freq": -1, "test_freq": self.test_freq},
        }

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(step, metrics) in the order in which they are logged."""
        rng = np.random.default_rng([self.num_prompts, self.seed])
        batch = self.num_prompts * self.group_size

        def scored(samples: float) -> float:
            return float(self.score(samples) + self.score_sd * rng.standard_normal())

        yield 0, {"val-core/openai/gsm8k/acc/mean@1": np.float64(scored(0)), "val-aux/num_turns/mean": 2.0}
        for step in range(1, self.steps + 1):
            training = scored((step - 1) * batch)
            norm = math.sqrt(1 + 400 / batch) * math.exp(0.05 * rng.standard_normal())
            row: dict[str, Any] = {
                "actor/pg_loss": np.float64(0.01),
                "actor/grad_norm": np.float64(norm),
                "actor/lr": np.float64(self.lr),
                "training/global_step": step,
                "training/epoch": 0,
            }
            if step % self.test_freq == 0:
                row["val-core/openai/gsm8k/acc/mean@1"] = np.float64(scored(step * batch))
            seconds = self.step_s * math.exp(0.02 * rng.standard_normal())
            row |= {
                "critic/score/mean": training,
                "critic/rewards/mean": training - 0.01,
                "response_length/mean": 200.0,
                "response_length/clip_ratio": 0.125,
                "prompt_length/mean": 100.0,
                "timing_s/generate_sequences": 0.5 * seconds,
                "timing_s/gen": 0.6 * seconds,
                "timing_s/reward": 0.01 * seconds,
                "timing_s/old_log_prob": 0.1 * seconds,
                "timing_s/update_actor": 0.28 * seconds,
                "timing_s/step": seconds,
            }
            if step % self.test_freq == 0:
                row["timing_s/testing"] = 7.0
            row |= {"perf/total_num_tokens": 300 * batch, "perf/throughput": 300 * batch / seconds}
            yield step, row

    def console(self, path: Path) -> Path:
        """Write the console log: colours, Ray's prefixes, a progress bar between the rows."""
        prefix = "\x1b[36m(TaskRunner pid=71)\x1b[0m "
        lines = [prefix + line for line in pformat(self.config()).splitlines()]
        for step, row in self.rows():
            items = " - ".join(f"{name}:{value!r}" for name, value in row.items())
            lines.append(f"{prefix}step:{step} - {items}")
            lines.append(f"{prefix}\rTraining Progress:  {step}%|#   | {step}/{self.steps} [00:10<01:00, 10.00s/it]")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        return path

    def jsonl(self, path: Path) -> Path:
        """Write what verl's file logger would: no configuration."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"step": step, "data": row}) + "\n" for step, row in self.rows()))
        return path
