"""Read data files of any schema in `formats.columns` into rows. Every row is returned: good, or with a reason."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from containers.contracts.configs.parts.row_filters import AS_FOUND, RankingPairs, RowReading
from containers.data.formats.columns import PreferenceSchema, detect_schema
from containers.data.formats.errors import UnknownSchemaError
from containers.data.formats.files import Line, read_lines
from containers.data.renamed_columns import renamed, renamed_line, require_columns
from containers.data.rows import MalformedRowError, PreferenceRow
from containers.harness.errors import BadDataError

ROWS_THAT_SHOW_THE_SCHEMA = 200


class RowRead(NamedTuple):
    """The result of one line of a file: a row, or the reason why there is none and the text that was found.

    If two lines make a row, `line` is the first; a line with a ranking makes several rows.
    """

    line: int
    row: PreferenceRow | None
    reason: str = ""
    seen: str = ""
    domain: str = ""
    language: str = ""


def read_rows(path: Path, reading: RowReading = AS_FOUND) -> Iterator[RowRead]:
    """Yield one item per line of the file, in order; for comparisons, per two lines; for rankings, per pair.

    Raises:
        BadDataError: the schema is unknown, a column that `reading` names is missing, or the file is damaged.
    """
    return rows_of_lines(read_lines(path, fast=not reading.columns), file=path.name, reading=reading)


def rows_of_lines(lines: Iterator[Line], *, file: str, reading: RowReading = AS_FOUND) -> Iterator[RowRead]:
    """Yield the rows of lines that are already read; most of the first lines decide the schema.

    Raises:
        BadDataError: the schema is unknown, or a column is missing; the message names `file`.
    """
    objects, lines = first_objects(lines, file=file, reading=reading)
    schema = detect_schema(objects, file=file) if objects else None
    if schema is not None and schema.join is not None:
        lines = schema.join((line.exactly() for line in lines), file)
    for line in lines:
        if schema is None or schema.split is None:
            yield _read_row(line, schema)
        else:
            yield from _read_pairs(line, schema, reading.ranking_pairs)


def first_objects(
    lines: Iterator[Line], *, file: str, reading: RowReading = AS_FOUND
) -> tuple[list[dict[str, Any]], Iterator[Line]]:
    """Return the objects of the first lines, which show what rows the file has; and all lines again.

    Objects and lines have the names of columns that `reading` gives.

    Raises:
        BadDataError: no object has such a column; the message names `file`.
    """
    head: list[Line] = []
    objects: list[dict[str, Any]] = []
    for line in lines:
        head.append(line)
        if line.value is not None:
            objects.append(line.value)
        if len(objects) == ROWS_THAT_SHOW_THE_SCHEMA:
            break
    lines, columns = itertools.chain(head, lines), reading.columns
    if not columns or not objects:
        return objects, lines
    try:
        require_columns(objects, columns, file=file)
    except UnknownSchemaError as error:
        raise BadDataError(str(error)) from error
    return [renamed(value, columns) for value in objects], (renamed_line(line, columns) for line in lines)


def _read_pairs(line: Line, schema: PreferenceSchema, choice: RankingPairs) -> Iterator[RowRead]:
    """Yield the pairs of a line; one item with a reason if it has none."""
    exact = line.exactly()
    if exact.value is None or schema.split is None:
        yield _read_row(exact, schema)
        return
    try:
        values = schema.split(exact.value, choice)
    except MalformedRowError as error:
        yield RowRead(line.number, None, error.reason, error.seen)
        return
    except RecursionError:
        yield RowRead(line.number, None, "invalid_json", "nested too deeply")
        return
    for value in values:
        yield _read_row(Line(line.number, dict(value)), schema)


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
