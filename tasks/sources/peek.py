"""Check the first rows of preference data, so that an unusable file is refused before anything is started.

The stage reads with the same functions, and counts malformed rows. So a file that is refused here would have failed
there, after the container was started and everything was read.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from containers.contracts.configs.parts.row_filters import AS_FOUND, RowReading
from containers.data.demonstrations.reading import DEMONSTRATIONS as DEMONSTRATION_ROWS
from containers.data.formats.columns import PreferenceSchema, schema_of
from containers.data.formats.errors import UnreadableFileError
from containers.data.formats.files import Line, ReadLimit, count_rows, file_kind, first_bytes, some_lines
from containers.data.formats.parquet_rows import opened_parquet
from containers.data.prompts.reading import PROMPTS as PROMPT_ROWS
from containers.data.reader import ROWS_THAT_SHOW_THE_SCHEMA
from containers.data.renamed_columns import renamed_names, require_columns
from containers.data.row_forms import RowForm
from containers.formatting import clean, one_line
from tasks.sources.errors import SourceAccessError, UnusableSourceError

BEGINNING_BYTES = 512
_TAR_MAGIC, _TAR_OFFSET = b"ustar", 257
_DOWNLOAD_AGAIN = "Download it again."
_AS_ROWS = "Write the rows as .jsonl or .parquet."
_UNPACK = "Unpack it, and name the file that was in it."
# Only reading all of it finds damage in the middle of a gzip file. That takes a second for 80 MB (measured).
WHOLE_BYTES = 512 * 1024**2
MAX_FILES = 200
_MAX_EXPANDED_BYTES = 4 * 1024**3
_HEAD_BYTES = 64 * 1024**2
_SHOWN_CHARACTERS, _PROBLEM_CHARACTERS = 60, 250
_AGAIN = "Make or download it again."


@dataclass(frozen=True, slots=True)
class FileSignature:
    """A known type of file; `kind` ends the sentence `The file is …`."""

    kind: str
    advice: str


# (what the file begins with, its kind, advice)
_KINDS = (
    (rb"version https://git-lfs", "a Git LFS pointer, not the data", "Fetch the data: `git lfs pull`."),
    (
        rb"\s*(<!doctype html|<html)",
        "a web page (HTML)",
        "Download the file itself, not the page that shows it (hub: `resolve` instead of `blob`).",
    ),
    (rb"\s*<\?xml", "an XML document, as servers send it for an error", _DOWNLOAD_AGAIN),
    (rb"\x80[\x02-\x05]", "a Python pickle, which is never loaded since loading runs code", _AS_ROWS),
    (rb"PK\x03\x04", "a zip archive or a spreadsheet", _UNPACK),
    (rb"ARROW1|\xff{4}", "an Arrow file", "Convert it: `Dataset.to_parquet` of the datasets library writes parquet."),
    (rb"PAR1", "a parquet file that was compressed once more", "Decompress it once."),
    (rb"\x1f\x8b", "a gzip file that was compressed twice", "Decompress it once."),
    (rb"\x28\xb5\x2f\xfd|BZh|\xfd7zXZ|7z\xbc\xaf", "compressed, and not with gzip", _UNPACK),
    (rb"SQLite format 3\0", "an SQLite database", _AS_ROWS),
    (rb"\xff\xfe|\xfe\xff|(\{\0|\0\{)", "text in UTF-16", "Convert it: `iconv -f UTF-16 -t UTF-8 OLD > NEW`."),
    (rb"\0{16}", "filled with zero bytes: a download that was not finished", _DOWNLOAD_AGAIN),
    (
        rb"(\xef\xbb\xbf)?\s*\[\s*\{",
        "one JSON list instead of one object per line",
        "Convert it: `jq -c '.[]' OLD.json > NEW.jsonl`.",
    ),
    (
        rb"(\xef\xbb\xbf)?\s*\{\s*\n",
        "JSON with objects that go over several lines",
        "Convert it: `jq -c . OLD.json > NEW.jsonl`.",
    ),
)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), FileSignature(*found)) for pattern, *found in _KINDS)


@dataclass(frozen=True)
class DataKind:
    """What the rows of a source are.

    Attributes:
        section: of the run that has the source.
        form_of: finds the form of rows by the names of their columns, as `schema_of`.
    """

    section: str
    form_of: Callable[..., PreferenceSchema | RowForm[Any]]

    def form_name(self, reading: RowReading, rows: Sequence[Collection[str]], file: str) -> str:
        """The name of the form that most rows have, after the columns were renamed.

        Args:
            rows: the column names of each row.
            file: how messages name the file.

        Raises:
            UnknownSchemaError: there is none, or a column that `reading` names is missing.
        """
        require_columns(rows, reading.columns, file=file)
        return self.form_of([renamed_names(row, reading.columns) for row in rows], file=file).name


PREFERENCES = DataKind("dataset", schema_of)
PROMPTS = DataKind(PROMPT_ROWS.section, PROMPT_ROWS.form_of)
DEMONSTRATIONS = DataKind(DEMONSTRATION_ROWS.section, DEMONSTRATION_ROWS.form_of)
# Finds the name of the form of rows by the names of their columns; the second argument is the file's name in messages.
FormName: TypeAlias = Callable[[Sequence[Collection[str]], str], str]


def match_signature(beginning: bytes) -> FileSignature | None:
    """Identify a file by its first `BEGINNING_BYTES`; None if it is not known.

    Example: b"<!DOCTYPE html><html>" is a web page.
    """
    if beginning[_TAR_OFFSET:].startswith(_TAR_MAGIC):
        return FileSignature("a tar archive", _UNPACK)
    return next((foreign for pattern, foreign in _PATTERNS if pattern.match(beginning)), None)


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


def peek_data(files: Mapping[str, Path], reading: RowReading = AS_FOUND, *, kind: DataKind = PREFERENCES) -> DataPeek:
    """Schemas and rows of data files, in seconds and bounded memory.

    Args:
        files: at least one path, by the file's name in messages.
        reading: its names of columns are put in place of the file's.

    Raises:
        SourceError: a file cannot be read, is damaged, is no data file, or its first rows have no known schema, or
            lack a column that `reading` names; or no file holds a row.
    """
    peeks: list[DataPeek] = []
    bytes_left = WHOLE_BYTES
    for name, path in list(files.items())[:MAX_FILES]:
        try:
            bytes_left -= path.stat().st_size
            peeks.append(_peek(path, name, whole=bytes_left >= 0, form_name=partial(kind.form_name, reading)))
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


def _peek(path: Path, name: str, *, whole: bool, form_name: FormName) -> DataPeek:
    try:
        if file_kind(path) == "parquet":
            return _peek_parquet(path, name, form_name)
        num_rows = count_rows(path, max_bytes=_MAX_EXPANDED_BYTES) if whole else None
        head = list(islice(some_lines(path, limit=ReadLimit(_HEAD_BYTES)), ROWS_THAT_SHOW_THE_SCHEMA))
        return _peek_lines(head, path, name, num_rows=num_rows, form_name=form_name)
    except UnreadableFileError as error:
        raise UnusableSourceError(f"{name} {one_line(error.problem, _PROBLEM_CHARACTERS)}", error.advice) from error


def _peek_parquet(path: Path, name: str, form_name: FormName) -> DataPeek:
    with opened_parquet(path) as file:
        columns, num_rows = list(file.schema_arrow.names), int(file.metadata.num_rows)
    schemas = (form_name([columns], name),) if num_rows else ()
    return DataPeek(schemas, num_rows)


def _peek_lines(head: Sequence[Line], path: Path, name: str, *, num_rows: int | None, form_name: FormName) -> DataPeek:
    """Return what the first lines show.

    Raises:
        UnreadableFileError: the objects among them have no known schema.
        UnusableSourceError: there are lines, but no object among them.
    """
    objects = [line.value for line in head if line.value is not None]
    bad = [line for line in head if line.value is None and line.reason != "blank_line"]
    if objects:
        return DataPeek((form_name(objects, name),), num_rows, len(bad), len(head))
    if not bad:
        return DataPeek(schemas=(), num_rows=num_rows)
    if foreign := match_signature(first_bytes(path, BEGINNING_BYTES)):
        raise UnusableSourceError(f"{name} is {foreign.kind}.", foreign.advice)
    flaw = _flaw(bad[0])
    if wanted := _kind_by_name(path, name):
        raise UnusableSourceError(f"{name} is no {wanted} file, nor JSON lines: {flaw}.", _AGAIN)
    lines = "its only line is no" if len(head) == 1 else f"none of its first {len(head)} lines is a"
    raise UnusableSourceError(
        f"{name}: {lines} JSON object; {flaw}.",
        "Write one JSON object per line, in UTF-8; or name a .parquet file.",
    )


def _flaw(line: Line) -> str:
    """Example: `line 1 ({'a': 1}) is no JSON: Expecting property name at position 2`."""
    if line.reason == "line_too_long":
        return f"line {line.number} {line.flaw}"
    text = clean(" ".join(line.seen.split()))
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    return f"line {line.number} ({shown}) {line.flaw}"


def _kind_by_name(path: Path, name: str) -> str:
    """File type that the name claims and the content is not; empty: none."""
    if name.endswith(".gz"):
        return "" if file_kind(path) else "gzip"
    return "parquet" if name.endswith(".parquet") else ""
