"""How much longer a step takes with a larger batch, beside the published ratios: where on the way to full hardware.

If the time of a batch is a + b B, a batch `factor` times as large takes ratio = (a + factor b B) / (a + b B) as long,
and of the smaller one's time a share (factor - ratio) / (factor - 1) does not depend on the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from analysis.facts import Fact, read_facts
from analysis.penalty import Interval, mean_of
from analysis.plain import interval_json

PAPER = Path(__file__).parents[1] / "results" / "paper"
Phase = Literal["generate", "train"]
# The published ratios: what was done, its phase, the fact with the ratio, and those with the two batches.
PUBLISHED: tuple[tuple[str, Phase, int, str, tuple[str, str]], ...] = (
    ("4x the responses, PPO", "generate", 4, "ppo_gen_time_ratio", ("ppo_gen_batch_low", "ppo_gen_batch_high")),
    ("4x the responses, GRPO", "generate", 4, "grpo_gen_time_ratio", ("grpo_gen_prompts_low", "grpo_gen_prompts_high")),
    ("2x the batch, training", "train", 2, "actor_update_ratio", ("prompts_reference", "prompts_fixed_rate")),
)


@dataclass(frozen=True)
class Curve:
    """Rates of a phase, responses per second: rates_RA[r, a] at batch_A[a] in round r; batches increase."""

    batch_A: np.ndarray
    rates_RA: np.ndarray
    source: Literal["profile", "timing"]
    knee: Interval | None = None


@dataclass(frozen=True)
class Growth:
    """Time at `larger` over that at `smaller`."""

    smaller: int
    larger: int
    ratio: Interval

    @property
    def fixed_frac(self) -> Interval:
        """Share of the smaller batch's time that does not depend on the batch."""
        factor = self.larger / self.smaller
        ends = self.ratio.high, self.ratio.low
        estimate, low, high = (None if r is None else fixed_frac(factor, r) for r in (self.ratio.estimate, *ends))
        return Interval(estimate, low, high)


def fixed_frac(factor: float, ratio: float) -> float:
    """(factor - ratio) / (factor - 1): 1 where a larger batch takes no longer, 0 where its time is in proportion.

    >>> round(fixed_frac(4, 1.74), 3), round(fixed_frac(4, 2.93), 3), round(fixed_frac(2, 2.06), 3)
    (0.753, 0.357, -0.06)
    """
    return (factor - ratio) / (factor - 1)


def growths(curve: Curve, factor: int) -> list[Growth]:
    """Every pair of measured batches with this factor between them; rounds are paired, intervals on the log scale.

    4 times as many in 1.74 times the time are 4 / 1.74 times the rate:

    >>> curve = Curve(np.array([64, 256]), np.array([[100.0, 100 * 4 / 1.74]] * 2), "profile")
    >>> [found] = growths(curve, 4)
    >>> found.smaller, found.larger, round(found.ratio.estimate, 2)
    (64, 256, 1.74)
    """
    place = {int(batch): a for a, batch in enumerate(curve.batch_A)}
    found = []
    for batch, a in place.items():
        if (other := place.get(batch * factor)) is not None:
            logs_R = math.log(factor) + np.log(curve.rates_RA[:, a]) - np.log(curve.rates_RA[:, other])
            found.append(Growth(batch, batch * factor, mean_of(logs_R).interval().map(math.exp)))
    return found


def where_equal(found: Sequence[Growth], ratio: float) -> float | None:
    """The smaller batch at which the ratio is first reached, interpolated on the log scale; None where it is not.

    >>> pairs = [Growth(b, 4 * b, Interval(r)) for b, r in ((16, 1.2), (64, 2.4))]
    >>> round(where_equal(pairs, 1.8), 1), where_equal(pairs, 3.0), where_equal(pairs, 1.1)
    (32.0, None, None)
    """
    for one, other in pairwise(found):
        low, high = one.ratio.estimate, other.ratio.estimate
        if low is not None and high is not None and low <= ratio <= high:
            share = (ratio - low) / (high - low) if high > low else 0.0
            return math.exp(math.log(one.smaller) + share * math.log(other.smaller / one.smaller))
    return None


def regime(share: float) -> str:
    """Where on the way to full hardware, by the share of the time that does not depend on the batch.

    >>> regime(0.753), regime(0.357), regime(-0.06)
    ('far from full', 'filling up', 'full')
    """
    return "far from full" if share >= 0.5 else "filling up" if share >= 0.1 else "full"


def regimes(share: Interval) -> str:
    """The regime at both limits of the interval, where it has some.

    >>> regimes(Interval(0.55, 0.21, 0.79)), regimes(Interval(0.75, 0.7, 0.8)), regimes(Interval(0.3))
    ('filling up to far from full', 'far from full', 'filling up')
    """
    assert share.estimate is not None
    found = [regime(limit) for limit in (share.low, share.high) if limit is not None] or [regime(share.estimate)]
    return " to ".join(dict.fromkeys(found))


def beside_published(
    curves: Mapping[Phase, Sequence[Curve]], reference_batch: int, folder: Path = PAPER
) -> list[dict[str, Any]]:
    """A row for each published ratio with ours at the reference's batch, or at the nearest that has a partner.

    curves: of each phase, the better source first; the first that has two such batches counts. [] where the published
    numbers are not at hand. `matched_at`: where ours would be the published one.
    """
    if not (folder / "facts.csv").is_file():
        return []
    facts, rows = read_facts(folder), []
    for what, phase, factor, ratio, batches in PUBLISHED:
        own = curves.get(phase, [])
        curve = next((curve for curve in own if growths(curve, factor)), own[0] if own else None)
        pairs = growths(curve, factor) if curve else []
        ours = min(pairs, key=lambda pair: abs(math.log(pair.smaller / reference_batch)), default=None)
        rows.append({"what": what, "phase": phase, "factor": factor} | _theirs(facts, factor, ratio, batches))
        rows[-1] |= _ours(curve, ours, where_equal(pairs, facts[ratio].value))
    return rows


def _theirs(facts: Mapping[str, Fact], factor: int, ratio: str, batches: tuple[str, str]) -> dict[str, Any]:
    share = fixed_frac(factor, facts[ratio].value)
    low, high = (int(facts[name].value) for name in batches)
    unit = facts[batches[0]].unit
    published = {"ratio": facts[ratio].value, "batches": [low, high], "unit": unit, "fixed_frac": share}
    return {"published": published | {"regime": regime(share)}}


def _ours(curve: Curve | None, ours: Growth | None, matched_at: float | None) -> dict[str, Any]:
    if curve is None or ours is None or ours.fixed_frac.estimate is None:
        return {"ours": None, "flag": "not measured" if curve is None else "no two batches with this factor"}
    share = ours.fixed_frac
    found = {"ratio": interval_json(ours.ratio), "batches": [ours.smaller, ours.larger], "source": curve.source}
    found |= {"fixed_frac": interval_json(share), "regime": regimes(share)}
    knee = interval_json(curve.knee or Interval(), "no plateau is reached, or no knee is known")
    return {"ours": found | {"matched_at": matched_at, "knee": knee}}
