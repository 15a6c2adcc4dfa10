"""Columns of one row of a benchmark to values; a value that cannot be used says why."""

from collections.abc import Mapping, Sequence
from typing import Any

from containers.data.rows import MalformedRowError, clean_text

Row = Mapping[str, Any]


class UnknownSubsetError(MalformedRowError):
    """A row of a part that the benchmark has not; `seen` is its name, `known` are the names that there are."""

    def __init__(self, subset: object, known: Sequence[str]) -> None:
        super().__init__("unknown_subset", subset)
        self.known = tuple(known)


def row_id(row: Row, *names: str) -> str:
    """The id that a row gives itself under the first of `names` that it has; empty where it has none.

    Example: 12.0, as parquet writers turn integers into floats, gives `12`.
    """
    value = next((row[name] for name in names if row.get(name) is not None), None)
    if value is None or value != value:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise MalformedRowError("id_not_text_or_number", repr(value))
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return clean_text(text)


def text_column(row: Row, name: str) -> str:
    """The text of a column, stripped.

    Raises:
        MalformedRowError: it is empty or no text.
    """
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise MalformedRowError(f"{name}_not_text", repr(value))
    return clean_text(value.strip())


def list_column(row: Row, name: str) -> list[object]:
    """The list of a column, at least one entry long.

    Raises:
        MalformedRowError: it is empty or no list.
    """
    value = row.get(name)
    if not isinstance(value, list | tuple) or not value:
        raise MalformedRowError(f"{name}_not_a_list", repr(value))
    return list(value)


def known_subset(name: str, known: Sequence[str]) -> str:
    """The published spelling of a subset's name; upper and lower case are the same.

    Raises:
        UnknownSubsetError: the benchmark has no such subset.
    """
    spelling = {item.casefold(): item for item in known}.get(name.casefold())
    if spelling is None:
        raise UnknownSubsetError(name, known)
    return spelling
