"""Read data files of any schema in `formats.columns` into rows. Every row is returned: good, or with a reason."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from containers.data.formats.columns import PreferenceSchema, detect_schema
from containers.data.formats.files import Line, read_lines
from containers.data.rows import MalformedRowError, PreferenceRow

ROWS_THAT_SHOW_THE_SCHEMA = 200


class RowRead(NamedTuple):
    """The result of one line of a file: a row, or the reason why there is none and the text that was found.

    If two lines make a row, `line` is the first.
    """

    line: int
    row: PreferenceRow | None
    reason: str = ""
    seen: str = ""
    domain: str = ""
    language: str = ""


def read_rows(path: Path) -> Iterator[RowRead]:
    """Yield one item per line of the file, in order; for comparisons, per two lines.

    Raises:
        BadDataError: the schema is unknown, or the file is damaged.
    """
    return rows_of_lines(read_lines(path, fast=True), file=path.name)


def rows_of_lines(lines: Iterator[Line], *, file: str) -> Iterator[RowRead]:
    """Yield the rows of lines that are already read; most of the first lines decide the schema.

    Raises:
        BadDataError: the schema is unknown; the message names `file`.
    """
    objects, lines = first_objects(lines)
    schema = detect_schema(objects, file=file) if objects else None
    if schema is not None and schema.num_lines > 1:
        lines = _two_lines_as_one(line.exactly() for line in lines)
    for line in lines:
        yield _read_row(line, schema)


def first_objects(lines: Iterator[Line]) -> tuple[list[dict[str, Any]], Iterator[Line]]:
    """Return the objects of the first lines, which show what rows the file has; and all lines again."""
    head: list[Line] = []
    objects: list[dict[str, Any]] = []
    for line in lines:
        head.append(line)
        if line.value is not None:
            objects.append(line.value)
        if len(objects) == ROWS_THAT_SHOW_THE_SCHEMA:
            break
    return objects, itertools.chain(head, lines)


def _two_lines_as_one(lines: Iterable[Line]) -> Iterator[Line]:
    """Join good line and bad line to one object of lists; a damaged line makes its pair malformed, a blank one not."""
    first: Line | None = None
    for line in lines:
        if line.reason == "blank_line":
            yield line
        elif first is None:
            first = line
        else:
            yield _joined(first, line)
            first = None
    if first is not None:
        yield Line(first.number, None, "comparison_without_second_line", first.seen)


def _joined(first: Line, second: Line) -> Line:
    if first.value is None or second.value is None:
        bad = first if first.value is None else second
        return Line(first.number, None, bad.reason, bad.seen)
    return Line(first.number, {name: [first.value[name], second.value.get(name)] for name in first.value})


def _read_row(line: Line, schema: PreferenceSchema | None) -> RowRead:
    if line.value is None or schema is None:
        return RowRead(line.number, None, line.reason, line.seen)
    try:
        return RowRead(line.number, schema.parse(line.value))
    except (MalformedRowError, RecursionError) as error:
        # Show the fault as the file has it.
        if line.raw:
            return _read_row(line.exactly(), schema)
        if isinstance(error, RecursionError):
            return RowRead(line.number, None, "invalid_json", "nested too deeply")
        names = [name if isinstance(name, str) else "" for name in map(line.value.get, ("domain", "language"))]
        return RowRead(line.number, None, error.reason, error.seen, *names)
