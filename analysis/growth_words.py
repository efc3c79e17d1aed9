"""How time grows with the batch, in words: the cells of the table of published ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.words import interval


def growth_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """The cells of the table of published ratios; none where nothing here stands beside them."""
    if all(row["ours"] is None for row in rows):
        return []
    return [
        {"what": row["what"], "published": published_cell(row), "ours": ours_cell(row), "regime": in_words(row)}
        for row in rows
    ]


def published_cell(row: dict[str, Any]) -> str:
    """`1.74x, 256 to 1,024 responses`."""
    low, high = row["published"]["batches"]
    return f"{row['published']['ratio']:g}x, {low:,} to {high:,} {row['published']['unit']}"


def ours_cell(row: dict[str, Any]) -> str:
    """`1.90 (1.80 to 2.01)x, 64 to 256 responses`, or a hyphen."""
    if row["ours"] is None:
        return "-"
    low, high = row["ours"]["batches"]
    return f"{interval(row['ours']['ratio'])}x, {low:,} to {high:,} responses ({row['ours']['source']})"


def in_words(row: Mapping[str, Any]) -> str:
    """The regime of a row, published and here.

    >>> theirs = {"fixed_frac": 0.753, "regime": "far from full"}
    >>> in_words({"published": theirs, "ours": None, "flag": "not measured"})
    'published: far from full (75% of the time is fixed); here: not measured'
    """
    theirs, ours = row["published"], row["ours"]
    text = f"published: {_share(theirs['regime'], theirs['fixed_frac'])}; here: "
    if ours is None:
        return text + row["flag"]
    text += _share(ours["regime"], ours["fixed_frac"]["estimate"])
    if ours["matched_at"] is not None:
        text += f", as published from a batch of about {ours['matched_at']:,.0f}"
    return text


def _share(words: str, share: float) -> str:
    return f"{words} ({max(share, 0):.0%} of the time is fixed)"
