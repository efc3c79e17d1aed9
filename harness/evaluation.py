"""Scores the policy on held-out prompts, without touching training state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from harness.models import decode_responses, encode_answer
from harness.rollout.engine import RolloutEngine, Sampling
from harness.tasks.task import Task
from harness.training.batch import supervised_batch
from harness.training.trainer import Trainer
from harness.types import Prompt, RolloutGroup


def evaluate(
    prompts: Sequence[Prompt],
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    engine: RolloutEngine,
    trainer: Trainer,
    sampling: Sampling,
) -> dict[str, float]:
    """Sampled and greedy score with their standard errors over prompts, and the expected score where one can be had.

    `sampling` asks for one sampled and one greedy response. Where a task has one right answer the expected
    score at the sampling temperature is the probability of that answer, end token included: it is exact
    when text and tokens correspond one to one (character tokenizers), and a lower bound otherwise.
    """
    groups = engine.generate(prompts, sampling)
    scores_P2 = score_groups(groups, task, tokenizer)
    metrics = {
        "eval/score": float(scores_P2[:, 0].mean()),
        "eval/score_se": standard_error(scores_P2[:, 0]),
        "eval/greedy_score": float(scores_P2[:, 1].mean()),
        "eval/greedy_score_se": standard_error(scores_P2[:, 1]),
    }
    answers = [prompt.answer for prompt in prompts]
    if all(answer is not None for answer in answers):
        answer_ids = [encode_answer(tokenizer, answer) for answer in answers if answer is not None]
        batch = supervised_batch([group.prompt_ids_L for group in groups], answer_ids)
        expected_P = np.exp([logprobs_T.sum(dtype=np.float64) for logprobs_T in trainer.logprobs(batch)])
        metrics["eval/expected_score"] = float(expected_P.mean())
        metrics["eval/expected_score_se"] = standard_error(expected_P)
    return metrics


def score_groups(groups: Sequence[RolloutGroup], task: Task, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Reward of every response, shape [P, G]."""
    responses = decode_responses(tokenizer, [rollout.token_ids_T for group in groups for rollout in group.rollouts])
    prompts = [group.prompt for group in groups for _ in group.rollouts]
    scores = [task.score(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
    return np.array(scores, dtype=np.float64).reshape(len(groups), -1)


def standard_error(scores_P: np.ndarray) -> float:
    """Standard error of the mean over two prompts or more, std with n - 1.

    >>> round(standard_error(np.array([0.0, 1.0, 1.0, 0.0])), 4)
    0.2887
    """
    return float(scores_P.std(ddof=1) / np.sqrt(len(scores_P)))
