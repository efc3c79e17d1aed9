"""Time spent in functions of the project, measured from outside: each call's own time, without the calls inside it."""

from __future__ import annotations

import importlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any


class SelfTimes:
    """Seconds of each label. Labels nest; time belongs to the innermost one that is open.

    >>> ticks = iter([0.0, 1.0, 3.0, 6.0])
    >>> times = SelfTimes(lambda: next(ticks))
    >>> with times.label("outer"):
    ...     with times.label("inner"):
    ...         pass
    >>> dict(times.seconds)
    {'outer': 4.0, 'inner': 2.0}
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since_s = 0.0

    @contextmanager
    def label(self, name: str) -> Iterator[None]:
        self._switch()
        self._open.append(name)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    def _switch(self) -> None:
        now_s = self.clock()
        if self._open:
            self.seconds[self._open[-1]] += now_s - self._since_s
        self._since_s = now_s

    def is_open(self, name: str) -> bool:
        return name in self._open

    def wrap(self, function: Callable[..., Any], name: str | Callable[[], str]) -> Callable[..., Any]:
        """The function, its own time counted under `name` (or what `name` returns when it is called)."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.label(name if isinstance(name, str) else name()):
                return function(*args, **kwargs)

        return timed

    @contextmanager
    def patched(self, homes: dict[str, str | Callable[[], str]]) -> Iterator[None]:
        """Wrap what is defined at "module:function" or "module:Class.method" wherever the project has imported it."""
        undo: list[tuple[Any, str, Any]] = []
        try:
            for home, name in homes.items():
                module, _, path = home.partition(":")
                *outer, last = path.split(".")
                owner: Any = importlib.import_module(module)
                for part in outer:
                    owner = getattr(owner, part)
                original = getattr(owner, last)
                timed = self.wrap(original, name)
                for holder in [owner, *(other for other in _project() if getattr(other, last, None) is original)]:
                    undo.append((holder, last, original))
                    setattr(holder, last, timed)
            yield
        finally:
            for holder, last, original in reversed(undo):
                setattr(holder, last, original)


def _project() -> list[ModuleType]:
    return [module for name, module in sys.modules.items() if name.partition(".")[0] == "harness"]
