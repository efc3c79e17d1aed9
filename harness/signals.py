"""How a command ends: SIGTERM of a scheduler and SIGHUP of a closed terminal end it as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_at_once = False


def leave_at_once() -> None:
    """From now on `leave` waits for no library: one of them would wait for what is gone, and end the process itself."""
    global _at_once
    _at_once = True


def leave(code: int) -> NoReturn:
    """End this process, its output written."""
    if _at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def listen() -> None:
    """From now on the signals raise KeyboardInterrupt; one that is ignored, as nohup does, stays ignored."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


@contextmanager
def listening() -> Iterator[None]:
    """Listen, and leave the handlers as they were before."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    listen()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deaf_once_interrupted() -> Iterator[None]:
    """Once interrupted in here, signals are ignored: what is being ended ends in peace."""
    try:
        yield
    except KeyboardInterrupt:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise


@contextmanager
def interrupted_afterwards() -> Iterator[None]:
    """A first signal in here counts at the end, a second at once: code of others may swallow what a handler raises."""
    heard: list[int] = []

    def note(number: int, _: object) -> None:
        if heard:
            raise KeyboardInterrupt
        heard.append(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield
    except Exception:
        if not heard:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard:
        raise KeyboardInterrupt


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
