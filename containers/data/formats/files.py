"""Data files to objects, line by line: jsonl, jsonl.gz and parquet. Nothing that lies in a file crashes the reader.

A line that is no JSON object comes back with the reason; a file that cannot be read at all raises BadDataError.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from containers.contracts.file_limits import MAX_EXPANSION, MAX_LINE_BYTES, expanded_bytes_allowed, has_too_few_rows
from containers.data.formats.parquet_rows import UnreadableParquetError, row_batches
from containers.harness.errors import BadDataError

DATA_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")

_BOM = b"\xef\xbb\xbf"
_READ_BYTES = 2**18
_SEEN_CHARACTERS = 80

# `json.loads` without what it does before and after: the line is stripped, and a text.
_value_at: Callable[[str, int], tuple[Any, int]] = json.scanner.make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]


class Line(NamedTuple):
    """One line (parquet: one row) of a data file; numbers begin with 1.

    Either `value` is an object, or `reason` names why there is none and `seen` shows the beginning of the line.
    `raw` is the line as it stands in the file, where it was read fast.
    """

    number: int
    value: dict[str, Any] | None
    reason: str = ""
    seen: str = ""
    raw: bytes = b""

    def exactly(self) -> "Line":
        """The same line as read without haste: whole numbers beyond 64 bits are no floats, and nesting ends sooner."""
        return _parse_line(self.number, self.raw) if self.raw else self


Parser = Callable[[int, bytes], Line]


def data_files(path: Path) -> tuple[Path, ...]:
    """The data files at `path`: itself, or every jsonl, jsonl.gz and parquet below the folder, sorted by path.

    Raises:
        BadDataError: nothing is there, or the folder holds no data file.
    """
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise BadDataError(
            f"{path} does not exist. A data file (jsonl, jsonl.gz, parquet) or a folder of them is wanted."
        )
    files = tuple(
        sorted(
            file
            for file in path.rglob("*")
            if file.name.endswith(DATA_SUFFIXES) and file.is_file() and _is_shown(file, path)
        )
    )
    if not files:
        found = ", ".join(sorted(file.name for file in path.iterdir())[:10]) or "nothing"
        raise BadDataError(f"{path} holds no data file. Wanted: {', '.join(DATA_SUFFIXES)}; found: {found}.")
    return files


def _is_shown(file: Path, folder: Path) -> bool:
    """Hidden files, as editors leave them, are no data; the digest of a folder leaves them out as well."""
    return not any(part.startswith(".") for part in file.relative_to(folder).parts)


def read_lines(path: Path, *, fast: bool = False) -> Iterator[Line]:
    """Every line of a data file, in order; the kind of file is told by its first bytes, not by its name.

    Args:
        fast: by orjson, which takes half the time or less; whole numbers beyond 64 bits come as floats.

    Raises:
        BadDataError: the file is damaged; or it expands so far beyond what text does, or has so many lines without a
            row, that it looks like a bomb.
    """
    num_without = 0
    for line in _lines_of(path, fast=fast):
        if line.value is None:
            num_without += 1
            demand_rows_among(line.number, num_rows=line.number - num_without, name=path.name)
        yield line


def demand_rows_among(num_lines: int, *, num_rows: int, name: str) -> None:
    """Refuse a file while it is being read, once nearly all of very many lines hold no row.

    Raises:
        BadDataError: they do not.
    """
    if has_too_few_rows(num_lines=num_lines, num_rows=num_rows):
        raise BadDataError(
            f"{name} holds {num_rows:,} rows in its first {num_lines:,} lines; the others are blank or malformed. It "
            "is no file of rows, or was written wrongly. Check where it comes from."
        )


def _lines_of(path: Path, *, fast: bool) -> Iterator[Line]:
    parse = _parse_fast if fast else _parse_line
    with open(path, "rb", buffering=_READ_BYTES) as stream:
        magic = stream.read(4)
        stream.seek(0)
        if magic == b"PAR1":
            yield from _read_parquet(path)
        elif magic[:2] == b"\x1f\x8b":
            yield from _read_gzip(path, stream, parse=parse)
        else:
            yield from _read_json_lines(stream.readline, parse=parse)


def _read_gzip(path: Path, stream: BinaryIO, *, parse: Parser) -> Iterator[Line]:
    number = 0
    with gzip.GzipFile(fileobj=stream, mode="rb") as expanded:

        def readline(limit: int) -> bytes:
            raw = expanded.readline(limit)
            out, packed = expanded.tell(), stream.tell()
            if out > expanded_bytes_allowed(packed):
                raise BadDataError(
                    f"{path.name} expands more than {MAX_EXPANSION}-fold (at line {number + 1}: {out:,} bytes from "
                    f"{packed:,}). No text does that; it looks like a decompression bomb. Check where it comes from."
                )
            return raw

        try:
            for line in _read_json_lines(readline, parse=parse):
                number = line.number
                yield line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadDataError(f"{path.name} is damaged after line {number}: {error}. Download it again.") from error


def _read_json_lines(readline: Callable[[int], bytes], *, parse: Parser) -> Iterator[Line]:
    number = 0
    while raw := readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            yield Line(number, None, "line_too_long", f"more than {MAX_LINE_BYTES:,} bytes")
            while raw and not raw.endswith(b"\n"):
                raw = readline(MAX_LINE_BYTES)
        else:
            yield parse(number, raw)


def _parse_fast(number: int, raw: bytes) -> Line:
    """The line by orjson; what that refuses is read as ever, which allows NaN and says what is wrong."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _parse_line(number, raw)
    return Line(number, value, raw=raw) if type(value) is dict else _parse_line(number, raw)


def _parse_line(number: int, raw: bytes) -> Line:
    raw = raw.removeprefix(_BOM).strip()
    if not raw:
        return Line(number, None, "blank_line", "")
    try:
        text = raw.decode("utf-8")
        value, end = _value_at(text, 0)
    except UnicodeDecodeError:
        return Line(number, None, "invalid_utf8", _beginning(raw))
    except (ValueError, StopIteration, RecursionError):
        return Line(number, None, "invalid_json", _beginning(raw))
    if end != len(text):
        return Line(number, None, "invalid_json", _beginning(raw))
    if not isinstance(value, dict):
        return Line(number, None, "not_an_object", _beginning(raw))
    return Line(number, value)


def _beginning(raw: bytes) -> str:
    return raw[:_SEEN_CHARACTERS].decode("utf-8", errors="replace")


def _read_parquet(path: Path) -> Iterator[Line]:
    number = 0
    try:
        for batch in row_batches(path):
            if batch.is_too_long:
                number += 1
                yield Line(number, None, "line_too_long", f"more than {MAX_LINE_BYTES:,} bytes")
                continue
            for value in batch.rows.to_pylist():
                number += 1
                yield Line(number, value)
    except UnreadableParquetError as error:
        raise BadDataError(str(error)) from error
    except UnicodeDecodeError as error:
        raise BadDataError(f"{path.name} is damaged after row {number:,}: {error}. Download it again.") from error
