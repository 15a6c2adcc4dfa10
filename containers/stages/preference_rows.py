"""A data file to preference rows, in any schema of `pair_schemas`. Every row comes out: good, or with a reason."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from containers.stages.pair_files import Line, read_lines
from containers.stages.pair_filters import first_flaw
from containers.stages.pair_schemas import MalformedRowError, Pair, PreferenceRow, Schema, detect_schema

__all__ = ["Pair", "PairRows", "RowRead", "read_pairs", "read_rows"]

_ROWS_THAT_SHOW_THE_SCHEMA = 200


@dataclass(frozen=True, slots=True)
class RowRead:
    """What one line of a file gave: a row, or the reason why there is none, and what was seen."""

    line: int
    row: PreferenceRow | None
    reason: str = ""
    seen: str = ""
    domain: str = ""
    language: str = ""


@dataclass(frozen=True)
class PairRows:
    """The pairs of a file, and how many of its rows were left out under which reason."""

    pairs: tuple[Pair, ...]
    left_out: dict[str, int]


def read_rows(path: Path) -> Iterator[RowRead]:
    """One item per line of the file, in order.

    Raises:
        BadDataError: the schema is unknown, or the file is damaged.
    """
    lines = read_lines(path)
    head: list[Line] = []
    objects = 0
    for line in lines:
        head.append(line)
        objects += line.value is not None
        if objects == _ROWS_THAT_SHOW_THE_SCHEMA:
            break
    schema = detect_schema((line.value for line in head if line.value is not None), file=path.name) if objects else None
    for line in itertools.chain(head, lines):
        yield _read_row(line, schema)


def read_pairs(path: Path) -> PairRows:
    """The pairs of one file that have an order: for evaluation, so no filter on language, length or repetition.

    Left out are malformed rows, ties, equal responses, control tokens, and labels against every annotator.

    Raises:
        BadDataError: the file is missing or damaged, or its schema is unknown.
    """
    pairs: list[Pair] = []
    left_out: Counter[str] = Counter()
    for item in read_rows(path):
        reason = item.reason if item.row is None else first_flaw(item.row)
        if item.row is None or reason:
            left_out[reason] += 1
        else:
            pairs.append(item.row.pair)
    return PairRows(pairs=tuple(pairs), left_out=dict(left_out))


def _read_row(line: Line, schema: Schema | None) -> RowRead:
    if line.value is None or schema is None:
        return RowRead(line.number, None, line.reason, line.seen)
    try:
        return RowRead(line.number, schema.parse(line.value))
    except MalformedRowError as error:
        domain, language = line.value.get("domain"), line.value.get("language")
        return RowRead(
            line.number,
            None,
            error.reason,
            error.seen,
            domain if isinstance(domain, str) else "",
            language if isinstance(language, str) else "",
        )
