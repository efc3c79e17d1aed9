"""Which batch to use: the verdict of each arm, which arms are aligned, and the recommendation.

A larger batch pays when r_q > r_N, that is when r_T = r_N / r_q < 1. A verdict must hold with N* interpolated, with N*
rounded up to the update boundary where training could really stop, and with every arm thinned to the coarsest grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.penalty import ALIGNED_HIGH, ALIGNED_LOW, Interval

Verdict = Literal["reference", "faster", "slower", "inconclusive", "target_not_reached"]


def verdict(r_T_variants: Sequence[Interval]) -> Verdict:
    """faster when every variant's interval of r_T lies below 1, slower when every one lies above.

    >>> fast, unsure, bound = Interval(0.7, 0.6, 0.8), Interval(0.9, 0.7, 1.1), Interval(None, 1.2, None, "lower")
    >>> verdict([fast, fast]), verdict([fast, unsure]), verdict([bound]), verdict([Interval(1.0, 1.0, 1.0)])
    ('faster', 'inconclusive', 'slower', 'inconclusive')
    """
    if all(r_T.high is not None and r_T.high < 1 for r_T in r_T_variants):
        return "faster"
    if all(r_T.low is not None and r_T.low > 1 for r_T in r_T_variants):
        return "slower"
    return "inconclusive"


def equivalent(r_N_90: Interval) -> bool | None:
    """Whether the 90% interval of r_N lies inside [3/4, 4/3]; None where there is no interval to test.

    Two one-sided tests at 5%: a wide interval is not aligned, however close to 1 its middle is. A censored arm has no
    upper limit and is not aligned.
    """
    if r_N_90.low is None and r_N_90.high is None:
        return None
    return r_N_90.inside(ALIGNED_LOW, ALIGNED_HIGH)


@dataclass(frozen=True)
class OutwardArm:
    """What the outward test needs to know of an arm: its family, its batch and its own equivalence."""

    family: tuple[str, ...]
    train_batch: int
    equivalent: bool | None


def aligned_outward(arms: Mapping[str, OutwardArm], reference: str) -> dict[str, bool | None]:
    """`aligned` of each arm, tested outward from the reference in the fixed order of |log(B / B_ref)|.

    An arm is aligned when it is equivalent and every arm of its family that lies between it and the reference is. Each
    family (arms that differ in batch and rate only) is tested on either side; the order is fixed before the data, so
    each test keeps its full 5%. None: the reference itself, or no interval to test.

    >>> found = {"a": (64, None), "b": (128, True), "c": (256, False), "d": (512, True), "e": (32, True)}
    >>> aligned_outward({arm: OutwardArm(("sqrt",), *values) for arm, values in found.items()}, "a")
    {'a': None, 'b': True, 'c': False, 'd': False, 'e': True}
    """
    centre = arms[reference].train_batch
    return {name: None if name == reference else _aligned(name, arms, reference, centre) for name in arms}


def _aligned(name: str, arms: Mapping[str, OutwardArm], reference: str, centre: int) -> bool | None:
    own = arms[name]
    nearer = [
        other.equivalent
        for other_name, other in arms.items()
        if other_name != reference
        and other.family == own.family
        and (centre < other.train_batch < own.train_batch or own.train_batch < other.train_batch < centre)
    ]
    return own.equivalent and all(nearer) if own.equivalent is not None else None


@dataclass(frozen=True)
class Candidate:
    """An arm as the recommendation sees it."""

    arm: str
    verdict: Verdict
    r_T: Interval


@dataclass(frozen=True)
class Recommendation:
    """The arm to use (None: nothing can be said), its r_T, and the other arms that may be as fast."""

    arm: str | None
    r_T: float | None
    ties: tuple[str, ...]
    reason: str


def recommend(
    candidates: Sequence[Candidate], reference: str, against_best: Mapping[str, Mapping[str, Interval]]
) -> Recommendation:
    """The arm with the smallest r_T among those shown to be faster than the reference; else the reference.

    against_best[a][b] is the interval of T(b) / T(a): an arm b whose interval holds 1 is a tie of a.
    """
    faster = [c for c in candidates if c.verdict == "faster" and c.r_T.estimate is not None]
    if not faster:
        slower = [c.arm for c in candidates if c.verdict in ("slower", "target_not_reached")]
        others = [c.arm for c in candidates if c.verdict == "inconclusive"]
        text = f"no arm is shown to be faster than {reference}"
        text += f"; not told apart from it: {', '.join(others)}" if others else ""
        text += f"; slower or without the target: {', '.join(slower)}" if slower else ""
        return Recommendation(reference, 1.0, tuple(others), text)
    best = min(faster, key=lambda c: c.r_T.estimate or 0.0)
    ties = tuple(arm for arm, ratio in against_best[best.arm].items() if ratio.low is not None and ratio.low <= 1)
    text = f"it reaches the target in {best.r_T.estimate:.2f} of the reference's time"
    text += f" (95% interval {best.r_T.low:.2f} to {best.r_T.high:.2f})"
    text += f"; not told apart from it: {', '.join(ties)}" if ties else ""
    return Recommendation(best.arm, best.r_T.estimate, ties, text)
