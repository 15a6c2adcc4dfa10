"""The first rows of preference data, so that a file nobody can train on is named before anything is started.

The stage reads by the same rules: content tells the kind of a file, and a malformed row is counted, not refused.
So what is refused here would have failed there, after the container was started and everything was read.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from containers.contracts.file_limits import MAX_EXPANSION, MAX_LINE_BYTES, RowLines, expanded_bytes_allowed
from containers.data.formats.columns import UnknownSchemaError, schema_of
from containers.data.formats.parquet_rows import UnreadableParquetError, opened_parquet
from containers.formatting import clean, one_line
from tasks.sources.errors import SourceAccessError, UnusableSourceError
from tasks.sources.file_kinds import BEGINNING_BYTES, foreign_file

# As in containers/data/reader.py; a test holds them together.
ROWS_THAT_SHOW_THE_SCHEMA = 200

# Only reading all of it finds damage in the middle of a gzip file. That takes a second for 80 MB (measured).
WHOLE_BYTES = 512 * 1024**2
MAX_FILES = 200
_MAX_EXPANDED_BYTES = 4 * 1024**3
_HEAD_BYTES = 64 * 1024**2
_CHUNK_BYTES = 1024**2
_SHOWN_CHARACTERS, _SHOWN_BYTES, _PROBLEM_CHARACTERS = 60, 240, 250
_AGAIN = "Make or download it again."
_GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)

_Text = BufferedReader | gzip.GzipFile


@dataclass(frozen=True)
class DataPeek:
    """What the first rows show.

    Attributes:
        schemas: names of the schemas found; none where there is no row.
        num_rows: rows of all files, blank lines too; None where they were not counted.
        num_bad: how many of the `num_seen` first lines are no JSON object; blank ones are not bad.
        num_unopened: files beyond the first 200.
    """

    schemas: tuple[str, ...]
    num_rows: int | None
    num_bad: int = 0
    num_seen: int = 0
    num_unopened: int = 0

    def __str__(self) -> str:
        """Example: `HelpSteer3, 2,817 rows`."""
        parts = [" and ".join(self.schemas), "rows not counted" if self.num_rows is None else f"{self.num_rows:,} rows"]
        if self.num_bad:
            parts.append(f"no JSON object in {self.num_bad:,} of the first {self.num_seen:,} lines")
        if self.num_unopened:
            parts.append(f"{self.num_unopened:,} files not opened")
        return ", ".join(parts)


def peek_data(files: Mapping[str, Path]) -> DataPeek:
    """Schemas and rows of data files, in seconds and bounded memory.

    Args:
        files: at least one path, by the name that messages give the file.

    Raises:
        SourceError: a file cannot be read, is damaged, is no data file, or its first rows have no schema that is known;
            or no file holds a row.
    """
    peeks: list[DataPeek] = []
    bytes_left = WHOLE_BYTES
    for name, path in list(files.items())[:MAX_FILES]:
        try:
            bytes_left -= path.stat().st_size
            peeks.append(_peek(path, name, whole=bytes_left >= 0))
        except OSError as error:
            raise SourceAccessError(f"{name} cannot be read: {error}.", "Change its mode or owner.") from error
    found = _together(peeks, num_unopened=len(files) - len(peeks))
    if not found.schemas:
        first, *others = files
        more = f" (and {len(others):,} more)" if others else ""
        raise UnusableSourceError(f"{first}{more} holds not one row.", _AGAIN)
    return found


def _together(peeks: Sequence[DataPeek], *, num_unopened: int) -> DataPeek:
    counts = [peek.num_rows for peek in peeks if peek.num_rows is not None]
    return DataPeek(
        schemas=tuple(dict.fromkeys(name for peek in peeks for name in peek.schemas)),
        num_rows=sum(counts) if len(counts) == len(peeks) and not num_unopened else None,
        num_bad=sum(peek.num_bad for peek in peeks),
        num_seen=sum(peek.num_seen for peek in peeks),
        num_unopened=num_unopened,
    )


def _peek(path: Path, name: str, *, whole: bool) -> DataPeek:
    with open(path, "rb") as stream:
        magic = stream.read(4)
        stream.seek(0)
        if magic == b"PAR1":
            return _peek_parquet(path, name)
        if magic[:2] == b"\x1f\x8b":
            return _peek_gzip(stream, name, whole=whole)
        num_rows = _count_lines(stream, stream, name) if whole else None
        return _judge(_read_head(stream), name, num_rows=num_rows, wanted=_kind_by_name(name))


def _kind_by_name(name: str) -> str:
    return "gzip" if name.endswith(".gz") else "parquet" if name.endswith(".parquet") else ""


def _peek_parquet(path: Path, name: str) -> DataPeek:
    try:
        with opened_parquet(path) as file:
            columns, num_rows = list(file.schema_arrow.names), int(file.metadata.num_rows)
    except UnreadableParquetError as error:
        problem = one_line(error.problem.removeprefix(path.name), _PROBLEM_CHARACTERS)
        raise UnusableSourceError(f"{name} {problem}", error.advice) from error
    schemas = (_schema([columns], name),) if num_rows else ()
    return DataPeek(schemas, num_rows)


def _peek_gzip(stream: BufferedReader, name: str, *, whole: bool) -> DataPeek:
    with gzip.GzipFile(fileobj=stream) as expanded:
        num_rows = _count_lines(expanded, stream, name) if whole else None
        try:
            head = _read_head(expanded)
        except _GZIP_ERRORS as error:
            raise _damaged_gzip(name, error) from error
        return _judge(head, name, num_rows=num_rows)


def _count_lines(text: _Text, packed: BufferedReader, name: str) -> int | None:
    """Lines of the whole text that are not blank; None where it grows larger than can be read in good time.

    Args:
        packed: the stream that `text` is expanded from; the same where it is not.

    Raises:
        UnusableSourceError: it is damaged, expands so far that it looks like a decompression bomb, or is nearly all
            blank lines.
    """
    lines = RowLines()
    try:
        while chunk := text.read1(_CHUNK_BYTES):
            lines.add(chunk)
            if lines.are_too_few:
                raise UnusableSourceError(
                    f"{name} has {lines.num_rows:,} rows in its first {lines.num_lines:,} lines; the others are blank.",
                    "Check where it comes from.",
                )
            if text.tell() > expanded_bytes_allowed(packed.tell()):
                raise UnusableSourceError(
                    f"{name} expands more than {MAX_EXPANSION}-fold, which no text does: a decompression bomb?",
                    "Check where it comes from.",
                )
            if text.tell() > _MAX_EXPANDED_BYTES:
                return None
    except _GZIP_ERRORS as error:
        raise _damaged_gzip(name, error, after=f" after line {lines.num_lines:,}") from error
    return lines.num_rows


def _damaged_gzip(name: str, error: Exception, *, after: str = "") -> UnusableSourceError:
    return UnusableSourceError(f"{name} is a damaged gzip file{after}: {_reason(error)}.", _AGAIN)


def _reason(error: Exception) -> str:
    return one_line(str(error), 200).rstrip(".")


@dataclass
class _Head:
    """The first lines: columns of those that are objects, and what is wrong with the first that is none."""

    beginning: bytes
    columns: list[list[str]]
    num_lines: int = 0
    num_bad: int = 0
    first_bad: str = ""


def _read_head(text: _Text) -> _Head:
    """The first 200 lines; fewer where they are very long."""
    text.seek(0)
    head = _Head(beginning=text.read(BEGINNING_BYTES), columns=[])
    text.seek(0)
    while head.num_lines < ROWS_THAT_SHOW_THE_SCHEMA and text.tell() < _HEAD_BYTES:
        raw = text.readline(MAX_LINE_BYTES + 1)
        if not raw:
            break
        head.num_lines += 1
        columns, flaw = _columns(raw)
        if columns is not None:
            head.columns.append(columns)
        elif flaw:
            head.num_bad += 1
            head.first_bad = head.first_bad or f"line {head.num_lines} {flaw}"
        if len(raw) > MAX_LINE_BYTES:
            _skip_line(text, raw)
    return head


def _skip_line(text: _Text, raw: bytes) -> None:
    while raw and not raw.endswith(b"\n") and text.tell() < _HEAD_BYTES:
        raw = text.readline(MAX_LINE_BYTES)


def _columns(raw: bytes) -> tuple[list[str] | None, str]:
    """The names in a line that is a JSON object; else None, and what is wrong (with a blank line: nothing)."""
    if len(raw) > MAX_LINE_BYTES:
        return None, f"is longer than {MAX_LINE_BYTES:,} bytes"
    line = raw.removeprefix(b"\xef\xbb\xbf").strip()
    if not line:
        return None, ""
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        flaw = f"is not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1}"
    except json.JSONDecodeError as error:
        flaw = f"is no JSON: {error.msg} at position {error.pos + 1}"
    except (ValueError, RecursionError) as error:
        flaw = f"cannot be read: {_reason(error)}"
    else:
        if isinstance(value, dict):
            return list(value), ""
        flaw = "is JSON, but no object"
    return None, f"({_shown(line)}) {flaw}"


def _shown(line: bytes) -> str:
    text = clean(" ".join(line[:_SHOWN_BYTES].decode("utf-8", errors="replace").split()))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _judge(head: _Head, name: str, *, num_rows: int | None, wanted: str = "") -> DataPeek:
    """The schema of the lines.

    Args:
        wanted: what the file is by its name and not by its content: `gzip`, `parquet`.

    Raises:
        UnusableSourceError: there are lines and not one of them is an object, or they have no schema that is known.
    """
    if head.columns:
        return DataPeek((_schema(head.columns, name),), num_rows, head.num_bad, head.num_lines)
    if not head.num_bad:
        return DataPeek(schemas=(), num_rows=num_rows)
    if foreign := foreign_file(head.beginning):
        raise UnusableSourceError(f"{name} is {foreign.kind}.", foreign.advice)
    if wanted:
        raise UnusableSourceError(f"{name} is no {wanted} file, nor JSON lines: {head.first_bad}.", _AGAIN)
    lines = "its only line is no" if head.num_lines == 1 else f"none of its first {head.num_lines} lines is a"
    raise UnusableSourceError(
        f"{name}: {lines} JSON object; {head.first_bad}.",
        "Write one JSON object per line, in UTF-8; or name a .parquet file.",
    )


def _schema(rows: Iterable[Iterable[str]], name: str) -> str:
    try:
        return schema_of(rows, file=name).name
    except UnknownSchemaError as error:
        raise UnusableSourceError(error.problem, error.advice) from error
