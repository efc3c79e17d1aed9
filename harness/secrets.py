"""Keys and tokens of this machine, taken out of texts that go to a file or the console."""

from __future__ import annotations

import os
import re

_NAMES_OF_SECRETS = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)$", re.IGNORECASE)
_SHORTEST = 8  # a shorter value is no key, and may be part of any word
_OF_THE_HUB = re.compile(r"\bhf_[A-Za-z0-9]{20,}")


def redact(text: str) -> str:
    """The text without the value of any environment variable that is named like a secret, and without hub tokens.

    >>> redact("401 for hf_abcdefghijklmnopqrstuvwxyz at the hub")
    '401 for *** at the hub'
    """
    values = {value for name, value in os.environ.items() if _NAMES_OF_SECRETS.search(name) and len(value) >= _SHORTEST}
    for value in sorted(values, key=len, reverse=True):  # one may hold another
        text = text.replace(value, "***")
    return _OF_THE_HUB.sub("***", text)
