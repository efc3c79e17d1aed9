"""What a person sees of an advice while it is made: one or two lines a turn, from advice.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.advise.brain import Item
from harness.advise.budget import Budget, Cost
from harness.progress import clock

MOST_SHOWN = 4


def known(content: Mapping[str, Any], cost: Cost) -> str:
    """What is known so far, and what it has cost."""
    advice = content.get("advice")
    found = f"{content.get('stage', '')}: {content.get('why', '')}"
    if advice and advice.get("runner_up"):  # alone it was compared with nothing
        ratio = (advice.get("r_T") or {}).get("estimate")
        speed = "" if ratio is None else f", r_T {ratio:.2f}"
        sure = advice.get("probability_within_tolerance")
        how = "" if sure is None else f", within the tolerance of the fastest with probability {sure:.0%}"
        found += f"; so far {advice['arm']}{speed}{how}"
    return f"{found} ({spent(cost)} so far)"


def planned(items: Sequence[Item]) -> str:
    """What is run next and why.

    >>> seeds = [{"do": "run", "arm": "P8", "seed": seed, "why": "a seed"} for seed in (3, 4)]
    >>> planned(seeds)
    'run P8 seed 3, P8 seed 4: a seed'
    """
    what = [name for item in items for name in names(item)]
    return f"{items[0]['do']} {_some(what, ', ')}: {_some(list(dict.fromkeys(item['why'] for item in items)), '; ')}"


def _some(texts: Sequence[str], between: str) -> str:
    """The first of them, and how many more there are.

    >>> _some(["a", "b"], ", "), _some(list("abcdefg"), ", ")
    ('a, b', 'a, b, c, d and 3 more')
    """
    rest = len(texts) - MOST_SHOWN
    return between.join(texts[:MOST_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def names(item: Item) -> list[str]:
    """What an item is about, in words."""
    if item["do"] == "time":
        rounds = item.get("rounds")
        return [f"{arm} ({rounds} rounds)" if rounds else arm for arm in item["arms"]]
    if item["do"] == "profile":
        return [f"{arm} with {', '.join(map(str, item['gen_batch'].get(arm, [])))} in flight" for arm in item["arms"]]
    at = f" from {item['at_samples']:,} samples" if item["do"] == "branch" else ""
    return [f"{item['arm']} seed {item['seed']}{at}"]


def spent(cost: Cost) -> str:
    """Samples and time.

    >>> spent(Cost(12345, 75))
    '12,345 samples, 0:01:15'
    """
    return f"{cost.samples:,.0f} samples, {clock(cost.seconds)}"


def limit(budget: Budget) -> str:
    """The budget.

    >>> limit(Budget(seconds=7200)), limit(Budget(samples=1000))
    ('2:00:00', '1,000 samples')
    """
    return f"{budget.samples:,.0f} samples" if budget.samples is not None else clock(budget.seconds or 0.0)
