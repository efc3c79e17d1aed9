"""One pool serves the steps of an advice; what goes wrong in one of them ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.advise.session import kept_pool
from harness.courier import Home
from harness.execution import ExecutionConfig
from harness.jobs import Job
from tests.harness.faults import InlinePool

HOME = Home(Path("results/small"), "0-0")


class Pools:
    """Opens pools and remembers them."""

    def __init__(self) -> None:
        self.opened: list[_Growing] = []
        self.closed = 0

    @contextmanager
    def __call__(self, execution: ExecutionConfig, most: int, home: Home) -> Iterator[InlinePool]:
        self.opened.append(_Growing(most))
        try:
            yield self.opened[-1]
        finally:
            self.closed += 1


class _Growing(InlinePool):
    def grow(self, size: int) -> None:
        self.size = max(self.size, size)


def test_steps_share_one_pool_that_grows_and_a_step_sees_no_more_than_it_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    pools = Pools()
    with kept_pool(pools) as open_pool:
        with open_pool(ExecutionConfig(), 1, HOME) as pool:
            assert (pool.size, pool.free) == (1, 1)
        with open_pool(ExecutionConfig(checkpoints_kept=9), 3, HOME) as pool:
            assert (pool.size, pool.free) == (3, 3)
            pool.shrink(1)  # as before a timing pass
            pool.start(Job("one", "builtins:abs", (-1,)))
            assert (pool.size, pool.free) == (1, 0)
            while pool.free == 0:
                pool.events(0.0)
        with open_pool(ExecutionConfig(), 2, HOME) as pool:
            assert pool.size == 2 and pools.opened[0].size == 3
        assert len(pools.opened) == 1 and pools.closed == 0
        with open_pool(ExecutionConfig(threads=2), 1, HOME):  # other processes: another pool in its place
            assert len(pools.opened) == 2 and pools.closed == 1
    assert pools.closed == 2


def test_an_interrupted_step_ends_the_workers_and_the_next_has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    pools = Pools()
    with kept_pool(pools) as open_pool:
        with pytest.raises(KeyboardInterrupt), open_pool(ExecutionConfig(), 1, HOME):
            raise KeyboardInterrupt
        assert pools.closed == 1
        with open_pool(ExecutionConfig(), 1, HOME):
            assert len(pools.opened) == 2
    assert pools.closed == 2


def test_on_a_cluster_that_was_there_each_step_opens_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    pools = Pools()
    with kept_pool(pools) as open_pool:
        for _ in range(2):
            with open_pool(ExecutionConfig(), 1, HOME):
                pass
    assert len(pools.opened) == pools.closed == 2
