"""Reduce a stage's output for Prefect's log; the stage's own log file has all of it.

A progress bar at ten lines a second for eight hours is 170 MB in Prefect's database.
"""

import re
import time
from collections import deque
from collections.abc import Callable

_PROGRESS = re.compile(r"^\s*step \d+ of \d+|\d+%\|.*\||\b\d+/\d+ \[[^\]]*(it/s|s/it)")
_LAST_WORDS = 20
_PROGRESS_EVERY_S = 30.0
_WINDOW_S = 10.0


class LogLines:
    """Passes lines on, but progress only every half minute, and of a flood only the start.

    Args:
        say: gets the lines that are passed on.
        most: lines passed on within ten seconds; the rest are counted, and `close` passes on the last of them.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        *,
        most: int = 200,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._most = most
        self._clock = clock
        self._window_ends_s = 0.0
        self._num_in_window = 0
        self._num_left_out = 0
        self._next_progress_s = 0.0
        self._last_progress = ""
        self._unsaid: deque[str] = deque(maxlen=_LAST_WORDS)

    def add(self, line: str) -> None:
        """Take one line that the stage printed."""
        now = self._clock()
        if now >= self._window_ends_s:
            self._window_ends_s, self._num_in_window = now + _WINDOW_S, 0
            self._confess()
        if _PROGRESS.search(line):
            self._last_progress = line
            if now >= self._next_progress_s:
                self._next_progress_s = now + _PROGRESS_EVERY_S
                self._last_progress = ""
                self._say(line)
            return
        self._num_in_window += 1
        if self._num_in_window > self._most:
            self._num_left_out += 1
            self._unsaid.append(line)
            return
        self._say(line)

    def close(self) -> None:
        """Pass on the last progress and the last lines of a stage that ended, whatever came before."""
        if self._last_progress:
            self._say(self._last_progress)
            self._last_progress = ""
        last_words = list(self._unsaid)
        self._num_left_out -= len(last_words)
        self._confess()
        for line in last_words:
            self._say(line)

    def _confess(self) -> None:
        if self._num_left_out > 0:
            self._say(f"… {self._num_left_out:,} lines are left out here; the stage's log file has them all.")
        self._num_left_out = 0
        self._unsaid.clear()
