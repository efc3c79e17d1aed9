"""What a sweep file may say of a task."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness.errors import InputError
from harness.fields import PositiveInt, Strict

QUESTION = "{question}"


class DigitTaskConfig(Strict):
    """Prompts are strings of digits."""

    has_one_right_answer: ClassVar[bool] = True
    speaks_language: ClassVar[bool] = False
    num_digits: PositiveInt = Field(6, le=18, description="digits in a prompt")

    @property
    def num_possible_prompts(self) -> int:
        """10^num_digits: every string of digits, leading zeros included."""
        return int(10**self.num_digits)


class ReverseDigitsConfig(DigitTaskConfig):
    """Reverse a string of digits; exact match."""

    name: Literal["reverse_digits"] = "reverse_digits"


class DigitSumsConfig(DigitTaskConfig):
    """Running sums of a string of digits, each modulo 10; exact match."""

    name: Literal["digit_sums"] = "digit_sums"


class RisingDigitsConfig(DigitTaskConfig):
    """Digits that never fall, whatever the prompt; the share of right places counts."""

    has_one_right_answer: ClassVar[bool] = False
    name: Literal["rising_digits"] = "rising_digits"


class LanguageTaskConfig(Strict):
    """Prompts are questions in words; the response is scored in a process of its own, within a time limit."""

    has_one_right_answer: ClassVar[bool] = False
    speaks_language: ClassVar[bool] = True
    prompt: str = Field(QUESTION, description="text of a prompt; {question} stands for the question")
    score_limit_s: float = Field(10.0, gt=0, description="seconds of computing that a score may take; beyond, it is 0")

    @model_validator(mode="after")
    def _asks_the_question(self) -> Self:
        if self.prompt.count(QUESTION) != 1:
            raise InputError(f"task.prompt: {self.prompt!r}; needs {QUESTION} in it exactly once")
        return self


class ReasoningGymConfig(LanguageTaskConfig):
    """A generator of the package reasoning-gym, with its own score."""

    name: Literal["reasoning_gym"] = "reasoning_gym"
    generator: str = Field(min_length=1, description="name of the generator, such as chain_sum")
    parameters: dict[str, Any] = Field(default_factory=dict, description="the generator's own settings")
    answer: Literal["whole", "tagged"] = Field(
        "whole", description="what is scored: the whole response, or what stands between <answer> and </answer>"
    )
    held_out: PositiveInt = Field(512, description="distinct questions kept for evaluation")


class DataConfig(Strict):
    """Questions with their answers: JSON Lines or Parquet, local or on the hub."""

    data: str = Field(min_length=1, description="file, folder, or hub id owner/name of a data set")
    files: str = Field("*", min_length=1, description="which of its files, such as main/train-*.parquet")
    revision: str | None = Field(None, description="commit of a data set on the hub")
    layout: Literal["gsm8k", "dapo", "aime", "plain"] = Field(
        "plain",
        description="columns: question and answer, after #### in gsm8k; prompt and reward_model.ground_truth in dapo; "
        "problem and answer in aime",
    )


DataConfigs = Annotated[tuple[DataConfig, ...], Field(strict=False)]


class MathConfig(LanguageTaskConfig):
    """Questions from files, with answers compared as mathematics."""

    name: Literal["math"] = "math"
    train: DataConfigs = Field(min_length=1, description="questions to train on")
    held_out: DataConfigs = Field((), description="questions for evaluation; unset: one in eight of train")
    prompt: str = Field(
        "{question}\nReason step by step, and put the final answer within \\boxed{}.",
        description="text of a prompt; {question} stands for the question",
    )


# A new task adds its class here.
TaskConfig = Annotated[
    ReverseDigitsConfig | DigitSumsConfig | RisingDigitsConfig | ReasoningGymConfig | MathConfig,
    Field(discriminator="name"),
]
