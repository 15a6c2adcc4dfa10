"""Signals that end the orchestrator: turned into an exception, so that `finally` runs, or held off while it runs."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_end_the_block() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that `finally` runs; left alone where somebody handles them."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    mine = []
    if threading.current_thread() is threading.main_thread():
        mine = [number for number in _ENDING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """A second Ctrl-C must not leave half-stopped servers behind; stopping takes seconds, and has a limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING_SIGNALS)}
    for number in before:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
