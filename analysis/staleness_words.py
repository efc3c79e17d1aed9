"""What the age of the samples costs, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.words import interval

Report = Mapping[str, Any]
GIVEN = (
    "The intervals are over seeds, given that log r_N is a straight line in the mean age and that streaming changes "
    "nothing else; arms that leave the line do not widen them"
)


def staleness_sentences(report: Report) -> list[str]:
    """What one update of age costs at each batch, and what the interval rests on; nothing without arms to compare."""
    found = report["staleness"]["price"]
    if not report["learning_signal"] or not found:
        return []
    text = "; ".join(map(_price, found))
    return [f"{text[0].upper()}{text[1:]}. {GIVEN}."]


def _price(row: Mapping[str, Any]) -> str:
    """`at B = 64 one update of age multiplies the samples by 0.99 (0.95 to 1.03): no price is shown (4 arms, ...)`."""
    factor = row["factor"]
    text = f"at B = {row['train_batch']:,} one update of age multiplies the samples to the target by "
    text += interval(factor)
    if row["price"] is None:
        text += ", measured once"
    elif row["price"]:
        text += ": age costs samples"
    else:
        text += ": no price is shown" if factor["ci95"][1] >= 1 else ": no price is shown, rather the reverse"
    low, high = row["ages"]
    return f"{text} ({row['num_arms']} arms, {low:.1f} to {high:.1f} updates old)"
