"""The short supervised start that all trials of a sweep share, cached by the hash of what it depends on.

Reinforcement learning needs a policy that is sometimes right. The start is an ordinary model folder in
results/warm_starts/<hash>, made once by whoever comes first.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from harness import seeds
from harness.algorithm.losses import negative_log_likelihood
from harness.config import OptimizerConfig, TrialConfig, WarmStartConfig
from harness.evaluation import right_answers
from harness.models import encode_answers, encode_prompts, load_model, load_tokenizer, model_folder
from harness.run_dir import build_once, write_json
from harness.tasks import make_task
from harness.tasks.task import Task
from harness.training.batch import supervised_batch
from harness.training.torch import TorchTrainer
from harness.types import Prompt

STOP_CHECK_PROMPTS = 256


def ensure_warm_start(config: TrialConfig, results_dir: Path) -> Path | None:
    """Folder of the warm-started model; None where the configuration asks for none."""
    start = config.model.warm_start
    if start is None:
        return None
    content = _depends_on(config)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return build_once(
        results_dir / "warm_starts" / digest, lambda folder: _build(config, start, results_dir, folder, content)
    )


def _depends_on(config: TrialConfig) -> dict[str, Any]:
    return {
        "model": config.model.model_dump(mode="json", exclude={"attention"}),
        "task": config.task.model_dump(mode="json"),
        "temperature": config.sampling.temperature,
        "packages": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def _build(
    config: TrialConfig, start: WarmStartConfig, results_dir: Path, folder: Path, content: dict[str, Any]
) -> None:
    task = make_task(config.task)
    tokenizer = load_tokenizer(config.model, task.alphabet)
    model = load_model(config.model, tokenizer, model_folder(config.model, results_dir))
    optimizer = OptimizerConfig(lr=start.lr)
    trainer = TorchTrainer(model, optimizer, start.num_responses, config.sampling.temperature, 0)
    steps, score = _train(task, tokenizer, trainer, start)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_json(folder / "warm_start.json", {**content, "steps_taken": steps, "expected_score": score})


def _train(
    task: Task, tokenizer: PreTrainedTokenizerBase, trainer: TorchTrainer, start: WarmStartConfig
) -> tuple[int, float]:
    """Supervised steps until `stop_score` or `steps`; returns the steps taken and the expected score at the end."""
    for step in range(start.steps):
        indices = range(step * start.num_responses, (step + 1) * start.num_responses)
        prompts = [task.train_prompt(start.seed, index) for index in indices]
        answers = [_noisy_answer(prompt, start) for prompt in prompts]
        trainer.step(
            supervised_batch(
                encode_prompts(tokenizer, prompts),
                encode_answers(tokenizer, answers),
            ),
            negative_log_likelihood,
            start.lr,
        )
        if start.stop_score is not None and (step + 1) % start.check_every_steps == 0:
            score = _expected_score(task, tokenizer, trainer, start)
            if score >= start.stop_score:
                return step + 1, score
    return start.steps, _expected_score(task, tokenizer, trainer, start)


def _noisy_answer(prompt: Prompt, start: WarmStartConfig) -> str:
    """The right answer, each character replaced by another digit with probability `label_noise`."""
    if prompt.answer is None:
        raise ValueError("a warm start needs a task with right answers to learn from")
    places = np.arange(len(prompt.answer))
    wrong = seeds.uniforms(start.seed, "label noise", prompt.index, places) < start.label_noise
    shift = 1 + seeds.hash64(start.seed, "wrong label", prompt.index, places) % np.uint64(9)
    return "".join(
        str((int(character) + int(by)) % 10) if is_wrong else character
        for character, is_wrong, by in zip(prompt.answer, wrong, shift, strict=True)
    )


def _expected_score(
    task: Task, tokenizer: PreTrainedTokenizerBase, trainer: TorchTrainer, start: WarmStartConfig
) -> float:
    """Mean probability of the right answer on training prompts past those the start learns from."""
    first = start.steps * start.num_responses
    prompts = [task.train_prompt(start.seed, first + index) for index in range(STOP_CHECK_PROMPTS)]
    batch = right_answers(prompts, tokenizer)
    assert batch is not None  # the start has learnt from them
    return float(np.mean([np.exp(logprobs_T.sum(dtype=np.float64)) for logprobs_T in trainer.logprobs(batch)]))


def start_folder(config: TrialConfig, results_dir: Path) -> Path | None:
    """Folder of the weights that a trial starts from, made if need be; None where they are drawn at random."""
    return ensure_warm_start(config, results_dir) or model_folder(config.model, results_dir)


def load_policy(config: TrialConfig, tokenizer: PreTrainedTokenizerBase, results_dir: Path) -> PreTrainedModel:
    """The model a trial starts from: the warm start where there is one."""
    return load_model(config.model, tokenizer, start_folder(config, results_dir))
