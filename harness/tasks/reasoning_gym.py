"""Questions from any generator of the package reasoning-gym, scored by its own rule. The only file that imports it.

A generator makes item i of a data set from (seed + i), so a question is named by one number. Held-out questions come
from the lowest of them, training from the rest; a training question with the words of a held-out one is drawn anew.
Sets of text have another order in each process unless PYTHONHASHSEED is set, and some generators draw from them:
harness.worker sets it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np

from harness import seeds
from harness.errors import EnvironmentProblem, InputError
from harness.explain import closest
from harness.tasks.config import QUESTION, ReasoningGymConfig
from harness.tasks.data import words
from harness.types import Prompt

BLOCK = 512
"""Questions of one data set: a few generators prepare the whole set when it is made."""
HELD_OUT_BLOCKS = 2**13
ALL_BLOCKS = 2**23
MOST_DRAWS_PER_QUESTION = 20
OWN_SETTINGS = ("seed", "size")


class ReasoningGym:
    """Question, response and score of one generator."""

    alphabet = ""
    max_response_tokens = None

    def __init__(self, config: ReasoningGymConfig) -> None:
        self.config = config
        self.score_limit_s = config.score_limit_s
        check_generator(config.generator, config.parameters)
        self._scorer = make_dataset(config.generator, config.parameters, 0)
        self._block = lru_cache(maxsize=4)(lambda block: make_dataset(config.generator, config.parameters, block))

    def train_prompt(self, seed: int, index: int) -> Prompt:
        held_out = self._held_out
        block, place = divmod(index, BLOCK)
        for attempt in range(MOST_DRAWS_PER_QUESTION * 10):
            drawn = int(seeds.hash64(seed, "train block", block, attempt)) % (ALL_BLOCKS - HELD_OUT_BLOCKS)
            entry = self._block(HELD_OUT_BLOCKS + drawn)[place]
            if words(entry["question"]) not in held_out:
                return self._prompt(index, entry)
        raise InputError(
            f"task.held_out: {self.config.held_out} leaves training no question of {self.config.generator}; needs fewer"
        )

    def eval_prompts(self, num_prompts: int, seed: int) -> Sequence[Prompt]:
        if num_prompts > self.config.held_out:
            raise InputError(
                f"evaluation.num_prompts: {num_prompts}; task.held_out keeps {self.config.held_out} questions, "
                f"so it needs {self.config.held_out} or fewer"
            )
        entries = list(self._held_out.values())
        order = np.argsort(seeds.hash64(seed, "held-out order", np.arange(len(entries))), kind="stable")
        return [self._prompt(index, entries[place]) for index, place in enumerate(order[:num_prompts])]

    def longest_prompts(self) -> Sequence[Prompt]:
        return ()

    def score(self, prompt: Prompt, response: str) -> float:
        from reasoning_gym.utils import extract_answer

        answer = response.strip() if self.config.answer == "whole" else extract_answer(response)
        return float(self._scorer.score_answer(answer, prompt.solution))

    @property
    def _held_out(self) -> Mapping[str, Any]:
        return held_out_entries(self.config.generator, json.dumps(self.config.parameters), self.config.held_out)

    def _prompt(self, index: int, entry: Mapping[str, Any]) -> Prompt:
        return Prompt(index, self.config.prompt.replace(QUESTION, entry["question"]), solution=entry)


@lru_cache(maxsize=8)
def held_out_entries(generator: str, parameters_json: str, count: int) -> Mapping[str, Any]:
    """The first `count` distinct questions of the held-out range, by their words. Kept for all trials of a process."""
    found: dict[str, Any] = {}
    most_draws = MOST_DRAWS_PER_QUESTION * count
    for draw in range(most_draws):
        block, place = divmod(draw, BLOCK)
        if place == 0:
            dataset = make_dataset(generator, json.loads(parameters_json), block)
        entry = dataset[place]
        found.setdefault(words(entry["question"]), entry)
        if len(found) == count:
            return found
    raise InputError(
        f"task.held_out: {count}; {most_draws} questions of {generator} hold {len(found)} different ones, and training "
        f"needs its share of them: set it to at most {max(len(found) // 2, 1)}"
    )


def make_dataset(generator: str, parameters: Mapping[str, Any], block: int) -> Any:
    """The data set of BLOCK questions that a block names. InputError when the generator refuses its settings."""
    from reasoning_gym.composite import DatasetSpec

    gym = import_gym()
    given = dict(parameters)
    try:
        if generator == "composite":
            given["datasets"] = [DatasetSpec(**spec) for spec in given.get("datasets", ())]
        return gym.create_dataset(generator, seed=block * BLOCK, size=BLOCK, **given)
    except (AssertionError, TypeError, ValueError, KeyError) as error:
        raise InputError(f"task.parameters: {generator} refuses {dict(parameters)}: {error}") from None


def check_generator(generator: str, parameters: Mapping[str, Any]) -> None:
    """InputError for a name that is no generator, or settings that it does not have."""
    import_gym()
    from reasoning_gym.factory import DATASETS

    if generator not in DATASETS:
        raise InputError(f"task.generator: {generator!r} does not exist{closest(generator, DATASETS)}")
    known = {field.name for field in fields(DATASETS[generator][1])} - set(OWN_SETTINGS)
    for name in parameters:
        if name in OWN_SETTINGS:
            raise InputError(f"task.parameters.{name}: the seeds of the sweep decide it; needs to be left out")
        if name not in known:
            raise InputError(f"task.parameters.{name}: unknown to {generator}{closest(name, known)}")


def import_gym() -> Any:
    """The package reasoning_gym. EnvironmentProblem without it."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise EnvironmentProblem(
            f"task.name reasoning_gym: the package reasoning-gym cannot be imported ({error}); "
            "run: pip install 'batch-invariance[tasks]'"
        ) from None
    return reasoning_gym
