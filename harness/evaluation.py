"""Scores the policy on held-out prompts, without touching training state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from harness.models import decode_responses, encode_answers, encode_prompts
from harness.rewards import Scorer
from harness.rollout.engine import RolloutEngine, Sampling
from harness.training.batch import supervised_batch
from harness.training.trainer import Trainer
from harness.types import Prompt, RolloutGroup, ScoredGroups, TokenBatch


def right_answers(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase) -> TokenBatch | None:
    """The one right response to each prompt, encoded; None where a prompt has no such answer."""
    answers = [prompt.answer for prompt in prompts if prompt.answer is not None]
    if len(answers) < len(prompts):
        return None
    return supervised_batch(encode_prompts(tokenizer, prompts), encode_answers(tokenizer, answers))


def evaluate(
    prompts: Sequence[Prompt],
    answers: TokenBatch | None,
    scorer: Scorer,
    tokenizer: PreTrainedTokenizerBase,
    engine: RolloutEngine,
    trainer: Trainer,
    sampling: Sampling,
) -> dict[str, float]:
    """Sampled and greedy score with their standard errors over prompts, and the expected score where one can be had.

    `sampling` asks for k sampled responses, whose mean is a prompt's score, and a greedy one. Where a task has one
    right answer (`answers`, as right_answers gives them) the expected score at the sampling temperature is the
    probability of that answer, end token included: it is exact when text and tokens correspond one to one (character
    tokenizers), and a lower bound otherwise.
    """
    groups = engine.generate(prompts, sampling)
    scored = score_groups(groups, scorer, tokenizer, sampling.num_greedy)
    mean_P, greedy_P = scored.rewards_PG.mean(axis=1), scored.rewards_PR[:, -1]
    metrics = {
        "eval/score": float(mean_P.mean()),
        "eval/score_se": standard_error(mean_P),
        "eval/greedy_score": float(greedy_P.mean()),
        "eval/greedy_score_se": standard_error(greedy_P),
        **failures("eval", scored),
    }
    if answers is not None:
        expected_P = np.exp([logprobs_T.sum(dtype=np.float64) for logprobs_T in trainer.logprobs(answers)])
        metrics["eval/expected_score"] = float(expected_P.mean())
        metrics["eval/expected_score_se"] = standard_error(expected_P)
    return metrics


def score_groups(
    groups: Sequence[RolloutGroup], scorer: Scorer, tokenizer: PreTrainedTokenizerBase, num_greedy: int
) -> ScoredGroups:
    """The groups with the reward of every response; the last `num_greedy` of each are greedy."""
    responses = decode_responses(tokenizer, [rollout.token_ids_T for group in groups for rollout in group.rollouts])
    scores = scorer.score([group.prompt for group in groups for _ in group.rollouts], responses)
    rewards_PR = scores.scores_S.reshape(len(groups), -1)
    return ScoredGroups(tuple(groups), rewards_PR, num_greedy, scores.num_errors, scores.num_timeouts)


def failures(prefix: str, scored: ScoredGroups) -> dict[str, float]:
    """How many rewards count as 0 because scoring failed or took too long; empty where that cannot be."""
    counts = {f"{prefix}/errors": scored.num_errors, f"{prefix}/timeouts": scored.num_timeouts}
    return {name: count for name, count in counts.items() if count is not None}


def standard_error(scores_P: np.ndarray) -> float:
    """Standard error of the mean over two prompts or more, std with n - 1.

    >>> round(standard_error(np.array([0.0, 1.0, 1.0, 0.0])), 4)
    0.2887
    """
    return float(scores_P.std(ddof=1) / np.sqrt(len(scores_P)))
