"""Signals that end the orchestrator: turned into an exception, so that `finally` runs, or held off while it runs.

SystemExit
└── EndedBySignal    SIGTERM or SIGHUP came; the process ends as a shell expects of it, with 128 + the signal's number
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(SystemExit):
    """Somebody asks this process to end."""

    def __init__(self, number: int) -> None:
        self.signal_name = signal.Signals(number).name
        self.exit_code = 128 + number
        super().__init__(self.exit_code)


def how_it_ended(ending: KeyboardInterrupt | EndedBySignal) -> str:
    """In words, without a full stop: `Interrupted`, `Stopped by SIGTERM`."""
    return f"Stopped by {ending.signal_name}" if isinstance(ending, EndedBySignal) else "Interrupted"


def exit_code_after(ending: KeyboardInterrupt | EndedBySignal) -> int:
    """What a shell expects: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return ending.exit_code if isinstance(ending, EndedBySignal) else 128 + signal.SIGINT


@contextmanager
def signals_end_the_block() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into EndedBySignal, so that `finally` runs; left alone where somebody handles them."""

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

    For the moment between the start of a process and the note of its pid; without the note nobody would stop it.
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
