"""Calls of several members: the first that fails ends the wait, and a death goes before the errors that it causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from harness.jobs import MemberDied
from harness.members import results


@dataclass
class Slow:
    """Over at the given look; never where there is none."""

    value: Any
    looks_left: int | None = 0

    def done(self) -> bool:
        if self.looks_left is None:
            return False
        self.looks_left -= 1
        return self.looks_left < 0

    def result(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_results_are_in_order_whoever_is_first() -> None:
    assert results([Slow("a", 3), Slow("b", 0), Slow("c", 1)]) == ["a", "b", "c"]
    assert results([]) == []


def test_an_error_ends_the_wait_for_those_who_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.members.DEATH_SHOWS_WITHIN_S", 0.05)
    with pytest.raises(ValueError, match="out of memory"):
        results([Slow("never", None), Slow(ValueError("out of memory"))])
    with pytest.raises(ValueError, match="first"):
        results([Slow(ValueError("second"), 3), Slow(ValueError("first"))])


def test_a_death_is_told_rather_than_what_it_did_to_others() -> None:
    with pytest.raises(MemberDied, match="killed"):
        results([Slow(ConnectionError("connection closed by peer")), Slow(MemberDied("killed"), 5)])
