"""Scores the policy on held-out prompts, without touching training state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from harness.models import decode_responses, encode_answers, encode_prompts
from harness.rollout.engine import RolloutEngine, Sampling
from harness.tasks.task import Task
from harness.training.batch import supervised_batch
from harness.training.trainer import Trainer
from harness.types import Prompt, RolloutGroup, TokenBatch


def right_answers(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> TokenBatch | None:
    """The one right response to each prompt, encoded; None where a prompt has no such answer."""
    answers = [prompt.answer for prompt in prompts if prompt.answer is not None]
    if len(answers) < len(prompts):
        return None
    return supervised_batch(encode_prompts(tokenizer, prompts), encode_answers(tokenizer, answers))


def evaluate(
    prompts: Sequence[Prompt],
    answers: TokenBatch | None,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    engine: RolloutEngine,
    trainer: Trainer,
    sampling: Sampling,
) -> dict[str, float]:
    """Sampled and greedy score with their standard errors over prompts, and the expected score where one can be had.

    `sampling` asks for one sampled and one greedy response. Where a task has one right answer (`answers`, as
    right_answers gives them) the expected score at the sampling temperature is the probability of that answer, end
    token included: it is exact when text and tokens correspond one to one (character tokenizers), and a lower bound
    otherwise.
    """
    groups = engine.generate(prompts, sampling)
    scores_P2 = score_groups(groups, task, tokenizer)
    metrics = {
        "eval/score": float(scores_P2[:, 0].mean()),
        "eval/score_se": standard_error(scores_P2[:, 0]),
        "eval/greedy_score": float(scores_P2[:, 1].mean()),
        "eval/greedy_score_se": standard_error(scores_P2[:, 1]),
    }
    if answers is not None:
        expected_P = np.exp([logprobs_T.sum(dtype=np.float64) for logprobs_T in trainer.logprobs(answers)])
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
