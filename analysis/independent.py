"""Ratios, products and differences of two independent estimates, with limits from the limits of the two.

MOVER (Zou and Donner, Statistics in Medicine 27, 2008) keeps intervals that are not symmetric as they are: with b - a
for d, L = d - sqrt((b - b_low)^2 + (a_high - a)^2), U = d + sqrt((b_high - b)^2 + (a - a_low)^2).
"""

from __future__ import annotations

import math
from typing import Literal

from analysis.penalty import Interval


def difference(first: Interval, second: Interval) -> Interval:
    """second - first of two independent estimates, by the formula above.

    A limit needs one of each; where an estimate is unknown but for a bound, the bounds' difference is a (wider) limit.

    >>> found = difference(Interval(1.0, 0.0, 2.0), Interval(5.0, 4.0, 9.0))
    >>> found.estimate, round(found.low, 3), round(found.high, 3)  # 4 - sqrt(1 + 1), 4 + sqrt(16 + 1)
    (4.0, 2.586, 8.123)
    >>> difference(Interval(1.0, 0.0, 2.0), Interval(None, 4.0, None, "lower"))
    Interval(estimate=None, low=2.0, high=None, bound='lower')
    """
    low, high = _gap(second, first), _gap(first, second)
    upper = None if high is None else -high
    if first.estimate is not None and second.estimate is not None:
        return Interval(second.estimate - first.estimate, low, upper)
    if (low is None) == (upper is None):
        return Interval(None, low, upper)
    return Interval(None, low, upper, "lower" if upper is None else "upper")


def _gap(above: Interval, below: Interval) -> float | None:
    """The lower limit of above - below."""
    if above.low is None or below.high is None:
        return None
    if above.estimate is None or below.estimate is None:
        return above.low - below.high
    half = math.hypot(above.estimate - above.low, below.high - below.estimate)
    return above.estimate - below.estimate - half


def ratio(first: Interval, second: Interval) -> Interval:
    """second / first of two independent positive estimates: the difference of their logarithms.

    >>> found = ratio(Interval(1.0, 0.8, 1.25), Interval(2.0, 1.6, 2.5))  # log limits +- 0.2231 sqrt(2)
    >>> round(found.estimate, 3), round(found.low, 3), round(found.high, 3)
    (2.0, 1.459, 2.742)
    """

    def logs(interval: Interval) -> Interval:
        parts = (interval.estimate, interval.low, interval.high)
        estimate, low, high = (None if x is None or x <= 0 else math.log(x) for x in parts)
        return Interval(estimate, low, high)

    return difference(logs(first), logs(second)).map(math.exp)


def product(first: Interval, second: Interval) -> Interval:
    """first * second of two independent positive estimates.

    >>> found = product(Interval(1.0, 0.8, 1.25), Interval(2.0, 1.6, 2.5))
    >>> round(found.estimate, 3), round(found.low, 3), round(found.high, 3)
    (2.0, 1.459, 2.742)
    """
    return ratio(inverse(first), second)


def inverse(interval: Interval) -> Interval:
    """1 / x of a positive x.

    >>> inverse(Interval(4.0, 2.0, 8.0))
    Interval(estimate=0.25, low=0.125, high=0.5, bound=None)
    >>> inverse(Interval(None, 5.0, None, "lower"))
    Interval(estimate=None, low=None, high=0.2, bound='upper')
    """
    estimate, low, high = (None if x is None else 1 / x for x in (interval.estimate, interval.high, interval.low))
    bounds: dict[str | None, Literal["lower", "upper"]] = {"lower": "upper", "upper": "lower"}
    return Interval(estimate, low, high, bounds.get(interval.bound))
