"""How full an engine is while it generates: its steps, and how many responses were in flight during each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Occupancy:
    """What steps of one engine took, or of several: sums, so that they add up over time and over engines.

    places: responses that may be in flight at a time. busy_s: seconds of steps. response_s: the same, each step times
    the responses in flight during it. tail_s: of busy_s, with fewer than half of the places taken.
    """

    places: int
    busy_s: float = 0.0
    response_s: float = 0.0
    tail_s: float = 0.0
    engines: int = 1

    @property
    def in_flight_mean(self) -> float | None:
        """Responses in flight while engines generate, over all of them; None where none did.

        >>> Occupancy(8, busy_s=2.0, response_s=12.0).in_flight_mean
        6.0
        """
        return self.engines * self.response_s / self.busy_s if self.busy_s else None

    def then(self, later: Occupancy) -> Occupancy:
        """With what the same engines did later."""
        return self._summed(later, places=max(self.places, later.places), engines=self.engines)

    def since(self, earlier: Occupancy) -> Occupancy:
        """Without what the same engines had done earlier."""
        spent = {name: getattr(self, name) - getattr(earlier, name) for name in _SPENT}
        return Occupancy(self.places, **spent, engines=self.engines)

    def beside(self, other: Occupancy) -> Occupancy:
        """With other engines that worked at the same time."""
        return self._summed(other, places=self.places + other.places, engines=self.engines + other.engines)

    def as_json(self, window_s: float) -> dict[str, float]:
        """Means over engines within `window_s` seconds, as a record has them; what no step took is missing.

        >>> Occupancy(8, busy_s=2.0, response_s=12.0, tail_s=0.5).as_json(4.0)
        {'places': 8, 'busy_frac': 0.5, 'in_flight_mean': 6.0, 'tail_s': 0.5, 'tail_frac': 0.25}
        """
        found: dict[str, float] = {"places": self.places, "busy_frac": self.busy_s / (self.engines * window_s)}
        if self.in_flight_mean is not None:
            found["in_flight_mean"] = self.in_flight_mean
            found |= {"tail_s": self.tail_s / self.engines, "tail_frac": self.tail_s / self.busy_s}
        return found

    def _summed(self, other: Occupancy, places: int, engines: int) -> Occupancy:
        return Occupancy(
            places, **{name: getattr(self, name) + getattr(other, name) for name in _SPENT}, engines=engines
        )


_SPENT = tuple(field.name for field in fields(Occupancy) if field.name.endswith("_s"))


def beside(occupancies: Iterable[Occupancy]) -> Occupancy:
    """Several engines that worked at the same time, as one."""
    first, *others = occupancies
    for other in others:
        first = first.beside(other)
    return first


class Meter:
    """Adds up an engine's steps."""

    def __init__(self, places: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.places = places
        self.busy_s = self.response_s = self.tail_s = 0.0
        self._clock = clock
        self._since_s = 0.0

    @property
    def total(self) -> Occupancy:
        """All steps so far."""
        return Occupancy(self.places, self.busy_s, self.response_s, self.tail_s)

    def start(self) -> None:
        """A step begins now. What passed since the last one was idle."""
        self._since_s = self._clock()

    def lap(self, in_flight: int) -> None:
        """So many responses were in flight since the last call, and the next step begins now."""
        now_s = self._clock()
        spent_s, self._since_s = now_s - self._since_s, now_s
        self.busy_s += spent_s
        self.response_s += in_flight * spent_s
        if 2 * in_flight < self.places:
            self.tail_s += spent_s
