"""Read data files (jsonl, jsonl.gz, parquet) line by line. No content of a file crashes the reader.

The check, the plan and the stages all use this module, so that they agree. A file's first bytes decide its kind, not
its name. A line that is no JSON object is returned with a reason.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from containers.contracts.file_limits import (
    MAX_LINE_BYTES,
    RowLines,
    expanded_bytes_allowed,
    has_too_few_rows,
)
from containers.data.formats.errors import UnreadableFileError, bomb
from containers.data.formats.parquet_rows import opened_parquet, row_batches
from containers.formatting import one_line
from containers.harness.errors import BadDataError

DATA_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")

_BOM = b"\xef\xbb\xbf"
_MAGIC = {"parquet": b"PAR1", "gzip": b"\x1f\x8b"}
_GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)
_READ_BYTES = 2**18
_CHUNK_BYTES = 2**20
_SEEN_CHARACTERS, _REASON_CHARACTERS = 80, 200
# A blank line is one byte, but takes as long as a short row.
_LEAST_LINE_BYTES = 100

# `json.loads` without its steps before and after: the line is already stripped and decoded.
_value_at: Callable[[str, int], tuple[Any, int]] = json.scanner.make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]


class Line(NamedTuple):
    """One line (parquet: one row) of a data file; numbers begin with 1.

    Either `value` is an object, or `reason` names why there is none, `seen` shows the beginning of the line, and `flaw`
    describes the fault for messages. `raw` is the line as the file has it, if it was read fast.
    """

    number: int
    value: dict[str, Any] | None
    reason: str = ""
    seen: str = ""
    raw: bytes = b""
    flaw: str = ""

    def exactly(self) -> "Line":
        """Parse the line again, not fast: whole numbers beyond 64 bits are no floats, and nesting ends sooner."""
        return _parse_line(self.number, self.raw) if self.raw else self


def line_of(number: int, value: object) -> Line:
    """A value that another reader made; one that is no object has a reason."""
    if isinstance(value, dict):
        return Line(number, value)
    return Line(number, None, "not_an_object", repr(value)[:_SEEN_CHARACTERS])


@dataclass
class ReadLimit:
    """The bytes of unpacked text that may still be read, over several files."""

    bytes_left: int

    def allows_more_after(self, num_bytes: int) -> bool:
        """Count a line or row of `num_bytes`, and return whether more may be read."""
        self.bytes_left -= max(num_bytes, _LEAST_LINE_BYTES)
        return self.bytes_left > 0


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
    """Whether the file is not hidden. Editors leave hidden files; the digest of a folder skips them too."""
    return not any(part.startswith(".") for part in file.relative_to(folder).parts)


def read_lines(path: Path, *, fast: bool = False) -> Iterator[Line]:
    """Yield every line of a data file, in order.

    Args:
        fast: parse with orjson, in half the time or less; whole numbers beyond 64 bits become floats.

    Raises:
        BadDataError: the file is damaged, or looks like a bomb: it expands too far, or has too many lines without a
            row.
    """
    num_without = 0
    try:
        for line in some_lines(path, fast=fast):
            if line.value is None:
                num_without += 1
                require_rows_among(line.number, num_rows=line.number - num_without, name=path.name)
            yield line
    except UnreadableFileError as error:
        raise BadDataError(str(error)) from error


def file_kind(path: Path) -> str:
    """`parquet` or `gzip`, by the file's first bytes; empty where it is neither."""
    with open(path, "rb") as stream:
        beginning = stream.read(4)
    return next((kind for kind, magic in _MAGIC.items() if beginning.startswith(magic)), "")


def count_rows(path: Path, *, max_bytes: int) -> int | None:
    """Number of lines that are not blank, or of parquet rows; None if the text is longer than `max_bytes` unpacked.

    Raises:
        UnreadableFileError: the file is damaged, looks like a bomb, or nearly all of it is blank lines.
    """
    if file_kind(path) == "parquet":
        with opened_parquet(path) as file:
            return int(file.metadata.num_rows)
    lines, num_bytes = RowLines(), 0
    try:
        with open(path, "rb") as stream, _BoundedGzip(path, stream) if file_kind(path) == "gzip" else stream as text:
            while chunk := text.read1(_CHUNK_BYTES):
                num_bytes += len(chunk)
                if num_bytes > max_bytes:
                    return None
                lines.add(chunk)
                _demand_rows(path.name, num_lines=lines.num_lines, num_rows=lines.num_rows)
    except _GZIP_ERRORS as error:
        raise _damaged_gzip(path, error, after_line=lines.num_lines) from error
    return lines.num_rows


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first `count` bytes of a file, unpacked if it is a gzip file.

    Raises:
        UnreadableFileError: it is a damaged gzip file.
    """
    with open(path, "rb") as stream, gzip.GzipFile(fileobj=stream) if file_kind(path) == "gzip" else stream as text:
        try:
            return text.read(count)
        except _GZIP_ERRORS as error:
            raise _damaged_gzip(path, error, after_line=0) from error


def require_rows_among(num_lines: int, *, num_rows: int, name: str) -> None:
    """Refuse a file while it is being read, once it has very many lines and nearly no row.

    Raises:
        BadDataError: it has so few rows.
    """
    try:
        _demand_rows(name, num_lines=num_lines, num_rows=num_rows)
    except UnreadableFileError as error:
        raise BadDataError(str(error)) from error


def _demand_rows(name: str, *, num_lines: int, num_rows: int) -> None:
    if has_too_few_rows(num_lines=num_lines, num_rows=num_rows):
        raise UnreadableFileError(
            name,
            f"holds {num_rows:,} rows in its first {num_lines:,} lines; the others are blank or malformed. It is no "
            "file of rows, or was written wrongly.",
            "Check where it comes from.",
        )


def some_lines(
    path: Path, *, limit: ReadLimit | None = None, wanted: Iterator[bool] | None = None, fast: bool = False
) -> Iterator[Line]:
    """Yield the lines of a data file up to the limit; lines that are not wanted are skipped unparsed.

    Args:
        wanted: one flag for each line, in order; None: all lines.
        fast: as in `read_lines`.

    Raises:
        UnreadableFileError: the file is damaged, or looks like a bomb.
    """
    kind, parse = file_kind(path), _parse_fast if fast else _parse_line
    if kind == "parquet":
        yield from _read_parquet(path, limit=limit, wanted=wanted)
        return
    number = 0
    try:
        with (
            open(path, "rb", buffering=_READ_BYTES) as stream,
            _BoundedGzip(path, stream) if kind == "gzip" else stream as text,
        ):
            for number, raw in _json_lines(text.readline, limit=limit):
                if wanted is None or next(wanted):
                    yield _too_long(number) if raw is None else parse(number, raw)
    except _GZIP_ERRORS as error:
        raise _damaged_gzip(path, error, after_line=number) from error


class _BoundedGzip(gzip.GzipFile):
    """A gzip file that refuses to expand further than text does; `stream` is the packed file."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        super().__init__(fileobj=stream, mode="rb")
        self._path, self._packed = path, stream

    def readline(self, size: int | None = -1) -> bytes:
        return self._bounded(super().readline(size))

    def read1(self, size: int = -1) -> bytes:
        return self._bounded(super().read1(size))

    def _bounded(self, read: bytes) -> bytes:
        if self.tell() > expanded_bytes_allowed(self._packed.tell()):
            raise bomb(self._path.name, self.tell(), packed_bytes=self._packed.tell())
        return read


def _damaged_gzip(path: Path, error: Exception, *, after_line: int) -> UnreadableFileError:
    why = one_line(str(error), _REASON_CHARACTERS).rstrip(".")
    return UnreadableFileError(
        path.name, f"is a damaged gzip file after line {after_line:,}: {why}.", "Make or download it again."
    )


def _json_lines(readline: Callable[[int], bytes], *, limit: ReadLimit | None) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and bytes of each line; None for a line over the limit, which is never in memory as a whole."""
    number = 0
    while raw := readline(MAX_LINE_BYTES + 1):
        number += 1
        is_too_long = len(raw) > MAX_LINE_BYTES
        yield number, None if is_too_long else raw
        if limit is not None and not limit.allows_more_after(len(raw)):
            return
        while is_too_long and raw and not raw.endswith(b"\n"):
            raw = readline(MAX_LINE_BYTES)
            if limit is not None and not limit.allows_more_after(len(raw)):
                return


def _too_long(number: int) -> Line:
    limit = f"{MAX_LINE_BYTES:,} bytes"
    return Line(number, None, "line_too_long", f"more than {limit}", flaw=f"is longer than {limit}")


def _parse_fast(number: int, raw: bytes) -> Line:
    """Parse a line with orjson; if orjson refuses it, with `_parse_line`, which allows NaN and names the fault."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _parse_line(number, raw)
    return Line(number, value, raw=raw) if type(value) is dict else _parse_line(number, raw)


def _parse_line(number: int, raw: bytes) -> Line:
    raw = raw.removeprefix(_BOM).strip()
    if not raw:
        return Line(number, None, "blank_line", "")
    reason = "invalid_json"
    try:
        text = raw.decode("utf-8")
        value, end = _value_at(text, 0)
    except UnicodeDecodeError as error:
        reason, flaw = "invalid_utf8", f"is not UTF-8: byte 0x{raw[error.start]:02x} at position {error.start + 1}"
    except json.JSONDecodeError as error:
        flaw = f"is no JSON: {error.msg} at position {error.pos + 1}"
    except StopIteration as error:
        flaw = f"is no JSON: Expecting value at position {error.value + 1}"
    except (ValueError, RecursionError) as error:
        flaw = f"cannot be read: {one_line(str(error), _REASON_CHARACTERS).rstrip('.')}"
    else:
        if end != len(text):
            flaw = f"is no JSON: Extra data at position {end + 1}"
        elif isinstance(value, dict):
            return Line(number, value)
        else:
            reason, flaw = "not_an_object", "is JSON, but no object"
    return Line(number, None, reason, raw[:_SEEN_CHARACTERS].decode("utf-8", errors="replace"), flaw=flaw)


def _read_parquet(path: Path, *, limit: ReadLimit | None, wanted: Iterator[bool] | None) -> Iterator[Line]:
    number = 0
    try:
        for batch in row_batches(path):
            before, number = number, number + batch.rows.num_rows
            places = [place for place in range(batch.rows.num_rows) if wanted is None or next(wanted)]
            if batch.is_too_long:
                yield from (_too_long(number) for _ in places)
            else:
                rows = batch.rows if wanted is None else batch.rows.take(places)
                for place, value in zip(places, rows.to_pylist(), strict=True):
                    yield Line(before + place + 1, value)
            if limit is not None and not limit.allows_more_after(batch.num_bytes):
                return
    except UnicodeDecodeError as error:
        problem = f"is damaged after row {number:,}: {error}."
        raise UnreadableFileError(path.name, problem, "Download it again.") from error
