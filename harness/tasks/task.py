"""The seam to what is learned: prompts by index, responses scored by a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.types import Prompt


class Task(Protocol):
    """Prompts without end for training, a fixed held-out list, and an exact reward."""

    alphabet: str
    """Every character of prompts and answers; embedded models build their vocabulary from it. Empty: none can."""

    @property
    def max_response_tokens(self) -> int | None:
        """Tokens a full answer takes, end token included, with one token a character; None where no one knows."""

    @property
    def score_limit_s(self) -> float | None:
        """Seconds of computing that a score may take in a process of its own; None: quick, and scored in place."""

    def train_prompt(self, seed: int, index: int) -> Prompt:
        """Prompt `index` of the training stream; the same for every arm with this seed, never a held-out one."""

    def eval_prompts(self, num_prompts: int, seed: int) -> Sequence[Prompt]:
        """`num_prompts` of the held-out prompts; `seed` picks which. InputError when there are not so many."""

    def longest_prompts(self) -> Sequence[Prompt]:
        """Where all training prompts are known, those of most characters; none otherwise."""

    def score(self, prompt: Prompt, response: str) -> float:
        """Reward in [0, 1]. Pure: the same completion always gets the same reward."""
