"""One row per step of one attempt, from what loggers write: metrics of a step in several places, runs resumed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

Row = tuple[int, Mapping[str, float]]


def merged(points: Iterable[Row]) -> tuple[list[Row], int]:
    """(rows in order of step, rows that a later attempt replaced) of points (step, metrics) in the order of writing.

    Points of one step are one row. A metric that goes back to an earlier step was written by an attempt that went on
    from a checkpoint: all that was written from that step on belongs to a policy that was thrown away. A metric that
    comes twice at its last step counts as it came last. Values that are not finite are missing.

    >>> merged([(1, {"a": 0.1}), (1, {"b": 5.0}), (2, {"a": 0.2}), (3, {"a": 0.3}), (2, {"a": 0.4})])
    ([(1, {'a': 0.1, 'b': 5.0}), (2, {'a': 0.4})], 2)
    """
    rows: dict[int, dict[str, float]] = {}
    latest: dict[str, int] = {}
    replaced = 0
    for step, metrics in points:
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        if any(latest.get(name, step) > step for name in finite):
            thrown_away = [other for other in rows if other >= step]
            for other in thrown_away:
                del rows[other]
            replaced += len(thrown_away)
            latest = {name: min(last, step - 1) for name, last in latest.items()}
        if finite:
            rows.setdefault(step, {}).update(finite)
            latest |= dict.fromkeys(finite, step)
    return sorted(rows.items()), replaced


def numbers(values: Mapping[str, object]) -> dict[str, float]:
    """The entries that are finite numbers.

    >>> numbers({"a": 1, "b": float("nan"), "c": "NaN", "d": True, "e": None})
    {'a': 1.0}
    """
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
