"""What `python -m harness profile` prints of a curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from harness.tables import plain

Curve = Mapping[str, Any]
TITLES = {"generate": "generation", "train": "training"}


def curve_table(curve: Curve) -> Table:
    """One row a point: rates with the half-width of their 95% interval, and what stands beside them."""
    generates = curve["phase"] == "generate"
    settings = ", ".join(f"{name} {value}" for name, value in curve["family"].items())
    table = Table(title=plain(f"{TITLES[curve['phase']]} ({settings})"), title_justify="left", box=None, pad_edge=False)
    table.add_column("arm", no_wrap=True)
    own = ("in flight", "mean in flight", "tail", "tokens each") if generates else ("B", "micro", "s/batch", "sync s")
    for title in ("responses/s", "95%", "tokens/s", *own):
        table.add_column(title, justify="right", no_wrap=True)
    for point in curve["points"]:
        table.add_row(plain(point["arm"]), *_rates(point), *(_generation(point) if generates else _training(point)))
    return table


def _rates(point: Mapping[str, Any]) -> tuple[str, str, str]:
    responses, tokens = (point[f"{name}_per_s"] for name in ("responses", "tokens"))
    return digits(responses["estimate"]), half_width(responses["half_width"]), digits(tokens["estimate"])


def half_width(share: float | None) -> str:
    """The half-width of an interval as a share of the mean.

    >>> half_width(0.0312), half_width(4.2), half_width(None)
    ('+-3.1%', '> +-100%', '-')
    """
    if share is None:
        return "-"
    return f"+-{share:.1%}" if share <= 1 else "> +-100%"


def digits(value: float) -> str:
    """Three significant digits, whole from 100 on.

    >>> digits(16463.2), digits(2.3456), digits(0.01957)
    ('16,463', '2.35', '0.0196')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _generation(point: Mapping[str, Any]) -> tuple[str, ...]:
    each = point["response_tokens"]["mean"]
    return f"{point['in_flight']:,}", f"{point['in_flight_mean']:,.1f}", f"{point['tail_frac']:.0%}", f"{each:,.1f}"


def _training(point: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = point["train_batch"] / point["responses_per_s"]["estimate"]
    sync = point["seconds_beside"]["sync"]
    return f"{point['train_batch']:,}", f"{point['micro_batch']:,}", digits(seconds), f"{sync:.2g}"


def notes(curve: Curve) -> list[str]:
    """The knee and the memory limit in words."""
    found = [f"{TITLES[curve['phase']]}: {_knee(curve['knee'], curve['along'].replace('_', ' '))}"]
    if curve["phase"] == "generate":
        limit = curve["memory_limit"]
        most = "not known" if limit["responses"] is None else f"{limit['responses']:,} responses in flight"
        found.append(f"memory limit of generation: {most} ({limit['source']})")
    return found


def _knee(knee: Mapping[str, Any] | None, along: str) -> str:
    if knee is None:
        return "one batch, no knee"
    share, rate = f"{knee['plateau_frac']:.0%} of the plateau", f"{digits(knee['per_s'])} responses/s"
    if not knee["reached"]:
        return f"no plateau is reached; {rate} at the largest batch"
    if knee["estimate"] is None:
        return f"the smallest batch, {along} {knee['ci95'][1]:,.0f}, has {share} ({rate}) already"
    low, high = knee["ci95"]
    limits = "" if low is None else f" (95% interval {low:,.0f} to {high:,.0f})"
    return f"{share} ({rate}) from {along} {knee['estimate']:,.0f}{limits}"
