"""Signals that end the orchestrator: turned into an exception, so that `finally` runs, or held back in a block.

SystemExit
└── EndedBySignal    SIGTERM or SIGHUP came; the exit code is 128 + the signal's number, as shells expect
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_ALL_SIGNALS = (signal.SIGINT, *_ENDING_SIGNALS)
_Handler: TypeAlias = Callable[[int, FrameType | None], object] | signal.Handlers


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

    with _handled_by(end, [number for number in _ENDING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]):
        yield


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Let the block finish: Ctrl-C, SIGTERM and SIGHUP that come meanwhile take effect at its end.

    Use it between the start of a process and the record of its pid: without the record, nothing would stop it.
    """
    came: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        came.append(number)

    # Not by the signal mask: a child would inherit it, and could not be stopped.
    with _handled_by(keep, [number for number in _ALL_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]):
        yield
    for late in came:
        signal.raise_signal(late)


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore signals while servers stop, which takes limited seconds: a second Ctrl-C would leave them half-stopped."""
    with _handled_by(signal.SIG_IGN, _ALL_SIGNALS):
        yield


@contextmanager
def _handled_by(handler: _Handler, numbers: Sequence[int]) -> Iterator[None]:
    """Handle these signals so during the block. Only the main thread can; in others this does nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in numbers} if is_main else {}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
