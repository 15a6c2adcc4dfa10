"""How large a line, a row and an unpacked data file may be; the check, the plan and the stages read by these."""

from typing import Final

# A line of JSON, and a row of parquet as it is once decoded.
MAX_LINE_BYTES: Final = 8 * 1024**2

# Text shrinks three to ten times. Zeros shrink a thousand times: a small file that would fill hours and disks.
MAX_EXPANSION: Final = 200
EXPANSION_GRACE_BYTES: Final = 64 * 1024**2

# A line that holds no row costs time and memory too, and may be a single byte. People write one or two between rows.
MAX_LINES_WITHOUT_ROW: Final = 100_000
MAX_LINES_WITHOUT_ROW_PER_ROW: Final = 10


def expanded_bytes_allowed(packed_bytes: int) -> int:
    """How many bytes may come out of that many compressed ones."""
    return EXPANSION_GRACE_BYTES + MAX_EXPANSION * packed_bytes


def has_too_few_rows(*, num_lines: int, num_rows: int) -> bool:
    """Whether so many lines hold so few rows that nobody wrote them as data."""
    return num_lines - num_rows > MAX_LINES_WITHOUT_ROW + MAX_LINES_WITHOUT_ROW_PER_ROW * num_rows
