"""Tasks on strings of digits, every digit string a prompt.

One string in eight, chosen by its hash, is held out: evaluation never sees a training prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, count

import numpy as np

from harness import seeds
from harness.errors import InputError
from harness.types import Prompt

HELD_OUT_ONE_IN = 8
LISTED_DIGITS = 6
"""Up to so many digits all numbers are listed to find the held-out ones."""


class DigitTask:
    """A string of digits and `=`; the answer is a string of as many digits. Here there is one right answer."""

    alphabet = "0123456789="
    score_limit_s = None

    def __init__(self, num_digits: int) -> None:
        self.num_digits = num_digits
        self.max_response_tokens = num_digits + 1

    def answer(self, digits: str) -> str | None:
        raise NotImplementedError

    def train_prompt(self, seed: int, index: int) -> Prompt:
        numbers = (self._number(seed, index, attempt) for attempt in count())
        return self._prompt(index, next(number for number in numbers if not is_held_out(number)))

    def eval_prompts(self, num_prompts: int, seed: int) -> Sequence[Prompt]:
        numbers = self._held_out_numbers
        if num_prompts > len(numbers):
            raise InputError(
                f"evaluation.num_prompts: {num_prompts}; the task holds out {len(numbers)} strings of "
                f"{self.num_digits} digits, so it needs {len(numbers)} or fewer"
            )
        # Hash order, so that the first few are spread over all of them.
        order = np.argsort(seeds.hash64(seed, "held-out order", numbers), kind="stable")
        return [self._prompt(index, int(numbers[place])) for index, place in enumerate(order[:num_prompts])]

    def longest_prompts(self) -> Sequence[Prompt]:
        return ()

    def score(self, prompt: Prompt, response: str) -> float:
        return float(response == prompt.answer)

    def _prompt(self, index: int, number: int) -> Prompt:
        digits = f"{number:0{self.num_digits}d}"
        return Prompt(index, digits + "=", self.answer(digits))

    def _number(self, seed: int, index: int, attempt: int) -> int:
        return int(seeds.hash64(seed, "train prompt", index, attempt)) % 10**self.num_digits

    @cached_property
    def _held_out_numbers(self) -> np.ndarray:
        if self.num_digits <= LISTED_DIGITS:
            numbers = np.arange(10**self.num_digits)
        else:
            drawn = seeds.hash64(0, "held-out candidate", np.arange(10**LISTED_DIGITS))
            numbers = np.unique(drawn % np.uint64(10**self.num_digits)).astype(np.int64)
        return numbers[is_held_out(numbers)]


def is_held_out(numbers: np.ndarray | int) -> np.ndarray:
    """Whether each number belongs to evaluation (boolean, the shape of `numbers`)."""
    return seeds.hash64(0, "held out", numbers) % np.uint64(HELD_OUT_ONE_IN) == 0


class ReverseDigits(DigitTask):
    """`123=` asks for `321`."""

    def answer(self, digits: str) -> str:
        return digits[::-1]


class DigitSums(DigitTask):
    """`345=` asks for the running sums modulo 10: `372`."""

    def answer(self, digits: str) -> str:
        return "".join(str(total % 10) for total in accumulate(int(digit) for digit in digits))


class RisingDigits(DigitTask):
    """Any digits, none below the one before it, whatever the prompt says: the noise lies within the prompts."""

    def answer(self, digits: str) -> None:
        return None

    def score(self, prompt: Prompt, response: str) -> float:
        """Share of the places that hold a digit not below the one before it; what comes behind them does not count.

        >>> RisingDigits(4).score(Prompt(0, "5170="), "2419"), RisingDigits(4).score(Prompt(0, "5170="), "=1")
        (0.75, 0.25)
        """
        places = response[: self.num_digits]
        right = sum(
            new.isdigit() and (not old.isdigit() or new >= old) for old, new in zip("=" + places, places, strict=False)
        )
        return right / self.num_digits
