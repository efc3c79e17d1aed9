"""Values as report.json has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.penalty import Interval


def interval_json(interval: Interval, flag: str = "") -> dict[str, Any]:
    """An interval as JSON; `flag` is kept where the estimate or its limits are missing."""
    found: dict[str, Any] = {"estimate": interval.estimate, "ci95": [interval.low, interval.high]}
    if interval.bound:
        found["bound"] = interval.bound
    if flag and (interval.estimate is None or interval.low is None):
        found["flag"] = flag
    return found


def plain(value: Any) -> Any:
    """Values as JSON has them: numpy scalars become Python's, numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
