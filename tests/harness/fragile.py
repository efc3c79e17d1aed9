"""Rules that go wrong. Processes that score import this file, so it imports nothing heavy."""

from __future__ import annotations

import os
import signal
import time

from harness.tasks.digits import ReverseDigits
from harness.types import Prompt


class Fragile(ReverseDigits):
    """One question in four whose score raises, and one whose score never comes back."""

    def score(self, prompt: Prompt, response: str) -> float:
        if prompt.index % 4 == 0:
            raise ZeroDivisionError("a rule with a fault")
        while prompt.index % 4 == 1:
            pass
        return super().score(prompt, response)


class Obedient(ReverseDigits):
    """The response says what its score does."""

    def score(self, prompt: Prompt, response: str) -> float:
        if response == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if response == "wait":
            time.sleep(600)
        return float(response)
