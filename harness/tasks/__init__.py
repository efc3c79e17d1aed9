"""Tasks: one file each (or one for a family), registered here by the name that sweep files use."""

from __future__ import annotations

from harness.tasks.config import (
    DigitSumsConfig,
    MathConfig,
    ReasoningGymConfig,
    ReverseDigitsConfig,
    RisingDigitsConfig,
    TaskConfig,
)
from harness.tasks.data import is_remote
from harness.tasks.digits import DigitSums, ReverseDigits, RisingDigits
from harness.tasks.mathematics import Mathematics
from harness.tasks.reasoning_gym import ReasoningGym
from harness.tasks.task import Task


def needs_hub(config: TaskConfig) -> bool:
    """Whether making its prompts may ask the hub, which a plan does not do."""
    return isinstance(config, MathConfig) and any(is_remote(data) for data in (*config.train, *config.held_out))


def make_task(config: TaskConfig) -> Task:
    """The task that a configuration names."""
    match config:
        case ReverseDigitsConfig():
            return ReverseDigits(config.num_digits)
        case DigitSumsConfig():
            return DigitSums(config.num_digits)
        case RisingDigitsConfig():
            return RisingDigits(config.num_digits)
        case ReasoningGymConfig():
            return ReasoningGym(config)
        case MathConfig():
            return Mathematics(config)
