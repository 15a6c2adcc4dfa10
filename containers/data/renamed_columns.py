"""Columns by configuration: the file's names become ours before the schema is detected."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from containers.data.formats.columns import NAME_CHARACTERS, names_shown
from containers.data.formats.errors import UnknownSchemaError
from containers.data.formats.files import Line
from containers.formatting import one_line
from containers.near_words import nearest_word


def renamed(value: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The object with our names in place of the file's; a column that already has one of our names gives way.

    Example: {question: 1, prompt: 2} with the columns {prompt: question} is {prompt: 1}.
    """
    taken = {*columns, *columns.values()}
    kept = {name: item for name, item in value.items() if name not in taken}
    return {**kept, **{ours: value[theirs] for ours, theirs in columns.items() if theirs in value}}


def renamed_line(line: Line, columns: Mapping[str, str]) -> Line:
    """The line with our names; parsed again if it was read fast, so that a fault is shown as the file has it."""
    line = line.exactly()
    return line if line.value is None else Line(line.number, renamed(line.value, columns))


def renamed_names(names: Collection[str], columns: Mapping[str, str]) -> tuple[str, ...]:
    """As `renamed`, of the names alone."""
    return tuple(renamed(dict.fromkeys(names), columns))


def require_columns(rows: Sequence[Iterable[str]], columns: Mapping[str, str], *, file: str) -> None:
    """Refuse a file without a column that the configuration names.

    Args:
        rows: the column names of the first rows.

    Raises:
        UnknownSchemaError: no row has it; the message has the columns found, and a near match.
    """
    found: Counter[str] = Counter(name for row in rows for name in row)
    missing = {ours: theirs for ours, theirs in columns.items() if theirs not in found}
    if not missing:
        return
    named = ", ".join(f"`{ours}: {one_line(theirs, NAME_CHARACTERS)}`" for ours, theirs in missing.items())
    near = [nearest_word(theirs, found) for theirs in missing.values()]
    meant = " or ".join(f"`{one_line(name, NAME_CHARACTERS)}`" for name in dict.fromkeys(near) if name is not None)
    raise UnknownSchemaError(
        file,
        f"has no column of the name that `columns` gives ({named}). Columns found: {names_shown(found)}.",
        f"{f'Did you mean {meant}? ' if meant else ''}Write `our name: the file's name` in the source's `columns`.",
    )
