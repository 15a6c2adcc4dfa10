"""Signals that end the orchestrator: turned into an exception, so that `finally` runs, or held back in a block.

SystemExit
└── EndedBySignal    SIGTERM or SIGHUP came; the exit code is 128 + the signal's number, as shells expect
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(SystemExit):
    """This process got a signal to end."""

    def __init__(self, number: int) -> None:
        self.signal_name = signal.Signals(number).name
        self.exit_code = 128 + number
        super().__init__(self.exit_code)


def how_it_ended(ending: KeyboardInterrupt | EndedBySignal) -> str:
    """Text without a full stop: `Interrupted`, `Stopped by SIGTERM`."""
    return f"Stopped by {ending.signal_name}" if isinstance(ending, EndedBySignal) else "Interrupted"


def exit_code_after(ending: KeyboardInterrupt | EndedBySignal) -> int:
    """Exit code that shells expect: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return ending.exit_code if isinstance(ending, EndedBySignal) else 128 + signal.SIGINT


@contextmanager
def signals_end_the_block() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into EndedBySignal, so that `finally` runs, unless they have a handler already."""

    def end(number: int, frame: FrameType | None) -> None:
        raise EndedBySignal(number)

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
def signals_held_back() -> Iterator[None]:
    """Let the block finish: Ctrl-C, SIGTERM and SIGHUP that come meanwhile take effect at its end.

    Use it between the start of a process and the record of its pid: without the record, nothing would stop it.
    """
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING_SIGNALS)}
        before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    # Not by the signal mask: a child would inherit it, and could not be stopped.
    for number in before:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore signals while servers stop, which takes limited seconds: a second Ctrl-C would leave them half-stopped."""
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
