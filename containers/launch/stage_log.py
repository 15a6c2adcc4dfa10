"""Turn the bytes of a program's output into lines: for a capped file, for a bounded tail, and live for a caller."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

MAX_LINE_BYTES = 8192
MAX_LOG_BYTES = 256 * 1024**2
TAIL_LINES = 200
# A progress bar at 10 Hz for 8 hours is 170 MB in a database; one line every two seconds is enough for a reader.
BAR_INTERVAL_S = 2.0
BURST_LINES = 500
LINES_PER_S = 50.0

_LINE_END = re.compile(rb"\r\n|\r(?!\Z)|\n")


class LineSplitter:
    """Cuts chunks at line ends (`\\n`, `\\r\\n`, `\\r`); a line longer than `MAX_LINE_BYTES` comes in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bool]]:
        """Yield complete lines, each with whether it ended in a bare `\\r`, as a progress bar does."""
        data = self._rest + chunk
        start = 0
        for end in _LINE_END.finditer(data):
            yield from _pieces(data[start : end.start()], is_bar=end.group() == b"\r")
            start = end.end()
        # A `\r` at the very end may be half of `\r\n`; it waits in the rest.
        self._rest = data[start:]
        while len(self._rest) > MAX_LINE_BYTES:
            yield from _pieces(self._rest[:MAX_LINE_BYTES], is_bar=False)
            self._rest = self._rest[MAX_LINE_BYTES:]

    def finish(self) -> Iterator[tuple[str, bool]]:
        """The last line, where the stream ended without a line end."""
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        if rest:
            yield from _pieces(rest, is_bar=False)


def _pieces(line: bytes, *, is_bar: bool) -> Iterator[tuple[str, bool]]:
    for start in range(0, max(1, len(line)), MAX_LINE_BYTES):
        yield line[start : start + MAX_LINE_BYTES].decode("utf-8", errors="replace"), is_bar


class StageLog:
    """Writes the full log to a file, keeps the last lines, and passes lines to `on_line` at a bounded rate.

    Args:
        path: created or truncated; at most `max_bytes` are written.
        on_line: gets lines in order; after a flood, it gets one line that says how many were left out.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        path: Path,
        on_line: Callable[[str], None],
        *,
        max_bytes: int = MAX_LOG_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._on_line = on_line
        self._max_bytes = max_bytes
        self._clock = clock
        self._splitter = LineSplitter()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._num_bytes = 0
        self._allowance = float(BURST_LINES)
        self._refilled_at = clock()
        self._last_bar = float("-inf")
        self._left_out = 0

    def __enter__(self) -> Self:
        self._stream = open(self._path, "w", encoding="utf-8", errors="replace")
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, at most `TAIL_LINES`."""
        return tuple(self._tail)

    def feed(self, chunk: bytes) -> None:
        """Process a chunk of bytes."""
        for line, is_bar in self._splitter.feed(chunk):
            self._take(line, is_bar=is_bar)
        self._stream.flush()

    def finish(self) -> None:
        """Process what is left after the last chunk."""
        for line, is_bar in self._splitter.finish():
            self._take(line, is_bar=is_bar)
        self._tell_left_out()
        self._stream.flush()

    def note(self, text: str) -> None:
        """Add a line of the runtime itself."""
        self._take(f"[launch] {text}", is_bar=False)
        self._stream.flush()

    def _take(self, line: str, *, is_bar: bool) -> None:
        if is_bar:
            now = self._clock()
            if now < self._last_bar + BAR_INTERVAL_S:
                return
            self._last_bar = now
        self._write(line)
        if not line.strip():
            return
        self._tail.append(line)
        if self._may_pass():
            self._tell_left_out()
            self._on_line(line)
        else:
            self._left_out += 1

    def _write(self, line: str) -> None:
        if self._num_bytes >= self._max_bytes:
            return
        self._num_bytes += len(line.encode("utf-8", errors="replace")) + 1
        if self._num_bytes >= self._max_bytes:
            line = f"[launch] the log reached {self._max_bytes:,} bytes; the rest is not kept here."
        self._stream.write(line + "\n")

    def _may_pass(self) -> bool:
        now = self._clock()
        self._allowance = min(BURST_LINES, self._allowance + (now - self._refilled_at) * LINES_PER_S)
        self._refilled_at = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def _tell_left_out(self) -> None:
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            self._on_line(f"[launch] {left_out:,} lines left out here; all are in {self._path}.")
