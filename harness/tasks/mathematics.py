"""Mathematical questions from files, answers compared by math-verify. The only file that imports it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from harness import seeds
from harness.errors import EnvironmentProblem, InputError
from harness.tasks.config import QUESTION, DataConfigs, MathConfig
from harness.tasks.data import longest, read_questions
from harness.types import Prompt

HELD_OUT_ONE_IN = 8
LONGEST = 32
Question = tuple[str, str]


class Mathematics:
    """Each epoch goes once over all questions, in an order of its own."""

    alphabet = ""
    max_response_tokens = None

    def __init__(self, config: MathConfig) -> None:
        try:
            same_answer("1", "1")  # loads grammars for a second, which the limit of no response has room for
        except ImportError as error:
            raise EnvironmentProblem(
                f"task.name math: the package math-verify cannot be imported ({error}); "
                "run: pip install 'batch-invariance[tasks]'"
            ) from None
        self.config = config
        self.score_limit_s = config.score_limit_s

    def train_prompt(self, seed: int, index: int) -> Prompt:
        questions, _ = self._split
        epoch, place = divmod(index, len(questions))
        return self._prompt(index, questions[_order(seed, "order of an epoch", epoch, len(questions))[place]])

    def eval_prompts(self, num_prompts: int, seed: int) -> Sequence[Prompt]:
        _, held_out = self._split
        if num_prompts > len(held_out):
            raise InputError(
                f"evaluation.num_prompts: {num_prompts}; the task holds out {len(held_out)} questions, so it needs "
                f"{len(held_out)} or fewer"
            )
        order = _order(seed, "held-out order", 0, len(held_out))[:num_prompts]
        return [self._prompt(index, held_out[place]) for index, place in enumerate(order)]

    def longest_prompts(self) -> Sequence[Prompt]:
        return [self._prompt(index, question) for index, question in enumerate(longest(self._split[0], LONGEST))]

    def score(self, prompt: Prompt, response: str) -> float:
        return float(same_answer(prompt.solution, response))

    @property
    def _split(self) -> tuple[list[Question], list[Question]]:
        return split(self.config.train, self.config.held_out)

    def _prompt(self, index: int, question: Question) -> Prompt:
        text, answer = question
        return Prompt(index, self.config.prompt.replace(QUESTION, text), solution=answer)


@lru_cache(maxsize=4)
def split(train: DataConfigs, held_out: DataConfigs) -> tuple[list[Question], list[Question]]:
    """(questions to train on, held-out questions), apart by their words; the trials of a process share them.

    Without files for the latter one question in eight, chosen by the hash of its words, is held out.
    """
    to_train = _read_all(train, "task.train")
    if held_out:
        kept = _read_all(held_out, "task.held_out")
    else:
        kept = {key: question for key, question in to_train.items() if is_held_out(key)}
    questions = [question for key, question in to_train.items() if key not in kept]
    if not questions:
        raise InputError(
            f"task.train: holds {len(to_train)} questions, none apart from the held-out ones; needs others"
        )
    return questions, list(kept.values())


def is_held_out(key: str) -> bool:
    """Whether the words of a question belong to evaluation where no file does."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) % HELD_OUT_ONE_IN == 0


def same_answer(answer: str, response: str) -> bool:
    """Whether the response gives the answer: what it boxes counts, else its final answer, else its last number.

    ValueError when the right answer itself is no mathematics.

    >>> same_answer("1/2", "Half: \\\\boxed{0.5}"), same_answer("18", "It is 17."), same_answer("1,200", "so $1200")
    (True, False, True)
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    # It limits no time of its own: the process that runs it is ended at task.score_limit_s.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    how = {
        "extraction_config": (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()),
        "parsing_timeout": None,
    }
    right = parse(f"\\boxed{{{answer}}}", **how)
    if not right:
        raise ValueError(f"the answer {answer!r} is no mathematics")
    return bool(verify(right, parse(response, **how), timeout_seconds=None, raise_on_error=True))


def _read_all(configs: DataConfigs, field: str) -> dict[str, Question]:
    found: dict[str, Question] = {}
    for number, config in enumerate(configs):
        found = read_questions(config, f"{field}[{number}]") | found
    return found


@lru_cache(maxsize=4)
def _order(seed: int, purpose: str, epoch: int, size: int) -> np.ndarray:
    return np.argsort(seeds.hash64(seed, purpose, epoch, np.arange(size)), kind="stable")
