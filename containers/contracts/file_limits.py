"""Size limits of a line, a row and an unpacked data file, for the check, the plan and the stages."""

import re
from typing import Final

# A line of JSON, and a decoded row of parquet.
MAX_LINE_BYTES: Final = 8 * 1024**2

# Text compresses three to ten times. Zeros compress a thousand times: a small file could then fill hours and disks.
MAX_EXPANSION: Final = 200
EXPANSION_GRACE_BYTES: Final = 64 * 1024**2

# A line without a row also costs time and memory, and can be a single byte. People write one or two between rows.
MAX_LINES_WITHOUT_ROW: Final = 100_000
MAX_LINES_WITHOUT_ROW_PER_ROW: Final = 10

_LINE_ENDS: Final = re.compile(rb"\n+")


def expanded_bytes_allowed(packed_bytes: int) -> int:
    """Largest allowed number of bytes after unpacking a file of that size."""
    return EXPANSION_GRACE_BYTES + MAX_EXPANSION * packed_bytes


def has_too_few_rows(*, num_lines: int, num_rows: int) -> bool:
    """Whether so many lines hold so few rows that the file cannot be real data."""
    return num_lines - num_rows > MAX_LINES_WITHOUT_ROW + MAX_LINES_WITHOUT_ROW_PER_ROW * num_rows


class RowLines:
    """Counts the lines and the non-blank lines of a text, chunk by chunk.

    Example: the chunks `b"a\\n\\n"` and `b"\\nb"` have 4 lines, of which 2 are not blank.
    """

    def __init__(self) -> None:
        self._num_ends = 0
        self._num_rows = 0
        self._last = b"\n"

    def add(self, chunk: bytes) -> None:
        """Count the next chunk; an empty chunk changes nothing."""
        seen = chunk.translate(None, b" \t\r")
        if not seen:
            return
        self._num_ends += seen.count(b"\n")
        runs = sum(1 for _ in _LINE_ENDS.finditer(seen))
        self._num_rows += runs - (seen[:1] == b"\n" and self._last == b"\n")
        self._last = seen[-1:]

    @property
    def num_lines(self) -> int:
        """Number of lines so far; the last may have no line end."""
        return self._num_ends + (self._last != b"\n")

    @property
    def num_rows(self) -> int:
        """Number of lines that hold more than blanks."""
        return self._num_rows + (self._last != b"\n")
