"""Prompts by index, held-out prompts apart, exact rewards."""

from __future__ import annotations

import pytest

from harness.errors import InputError
from harness.tasks.digits import DigitSums, ReverseDigits, RisingDigits
from harness.types import Prompt


def test_answers_worked_by_hand() -> None:
    assert ReverseDigits(4).answer("1230") == "0321"
    # 3, 3+4=7, 7+5=12 -> 2
    assert DigitSums(3).answer("345") == "372"


def test_only_the_whole_answer_scores() -> None:
    task = ReverseDigits(3)
    prompt = Prompt(0, "123=", "321")
    assert [task.score(prompt, response) for response in ("321", "32", "3210", "123", "")] == [1, 0, 0, 0, 0]
    assert task.score(prompt, "321") == 1.0  # and again: a score changes nothing


def test_rising_digits_score_by_the_place_whatever_the_prompt() -> None:
    task = RisingDigits(4)
    prompt = task.train_prompt(0, 0)
    assert prompt.answer is None
    # 2419: 2, 4, then 1 is below 4, 9. A place without a digit is wrong, and the one after it compares with nothing.
    scores = {"2419": 0.75, "0000": 1.0, "9876": 0.25, "12": 0.5, "": 0.0, "1=23": 0.75, "11119": 1.0}
    assert {response: task.score(prompt, response) for response in scores} == scores


def test_the_prompt_stream_is_indexed_not_drawn() -> None:
    task = ReverseDigits(6)
    forwards = [task.train_prompt(1, index) for index in range(50)]
    backwards = [ReverseDigits(6).train_prompt(1, index) for index in reversed(range(50))]
    assert forwards == backwards[::-1]
    assert [prompt.text for prompt in forwards] != [task.train_prompt(2, index).text for index in range(50)]


def test_held_out_prompts_never_occur_in_training() -> None:
    task = ReverseDigits(3)
    held_out = {prompt.text for prompt in task.eval_prompts(100, seed=0)}
    assert len(held_out) == 100
    assert held_out.isdisjoint(task.train_prompt(0, index).text for index in range(5000))


def test_too_many_held_out_prompts_is_an_input_error_with_the_number_there_are() -> None:
    with pytest.raises(InputError, match=r"evaluation.num_prompts: 900; the task holds out \d+ strings"):
        ReverseDigits(3).eval_prompts(900, seed=0)
