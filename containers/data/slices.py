"""A slice of the rows of several files, such as the first tenth: always the same rows of the same files."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from containers.contracts.configs.parts.row_filters import slice_of
from containers.data.formats.errors import UnreadableFileError
from containers.data.formats.files import Line, count_rows, read_lines
from containers.harness.errors import BadDataError


def sliced_files(files: Sequence[Path], rows: str, *, name: str) -> Iterator[tuple[Path, Iterator[Line]]]:
    """Yield each file that has rows of the slice, with the lines of those rows.

    Rows are counted over the files in their order; blank lines are no rows, and are left out.

    Args:
        rows: the slice, such as `[:10%]`.
        name: how messages name the data.

    Raises:
        BadDataError: a file is damaged, or no row is in the slice.
    """
    try:
        counts = [count_rows(path, max_bytes=sys.maxsize) or 0 for path in files]
    except UnreadableFileError as error:
        raise BadDataError(str(error)) from error
    wanted = slice_of(rows, num_rows=sum(counts))
    if not wanted:
        raise BadDataError(f"{name} has {sum(counts):,} rows, and none is in the slice {rows}. Take a larger slice.")
    first = 0
    for path, count in zip(files, counts, strict=True):
        start, stop = max(wanted.start - first, 0), min(wanted.stop - first, count)
        if start < stop:
            yield path, _lines(path, start, stop)
        first += count


def _lines(path: Path, start: int, stop: int) -> Iterator[Line]:
    place = 0
    for line in read_lines(path):
        if line.reason == "blank_line":
            continue
        if place >= stop:
            return
        if place >= start:
            yield line
        place += 1
