"""Read parquet in bounded memory: limits apply to the decoded size of rows, not to the size of the file.

A dictionary page holds a text once, and a row refers to it by a few bits: 1,360 bytes may become 4 GB. So a row group
that could grow that far is read with its dictionaries kept, and sizes are known before texts are decoded.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from containers.contracts.file_limits import MAX_LINE_BYTES, expanded_bytes_allowed
from containers.data.formats.errors import UnreadableFileError, bomb
from containers.data.formats.parquet_pages import group_sums
from containers.formatting import one_line

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BATCH_ROWS = 512
_BATCH_BYTES = 32 * 1024**2
# The approximate size of an entry without a text (a number, a null, an empty list), as JSON and in Python.
_ENTRY_BYTES = 8
# Limits of the file's footer. The parser and Arrow's schema recurse: 5,000 levels are read, 20,000 end the process
# (measured).
_MAX_FOOTER_TEXT_BYTES = 16 * 1024**2
_MAX_FOOTER_ENTRIES = 10_000
_MAX_NESTING = 100
_REASON_CHARACTERS = 200


class RowBatch(NamedTuple):
    """Rows that may be decoded at once, and their decoded size in bytes.

    `is_too_long`: it is a single row over the limit of a line, which must not be decoded.
    """

    rows: "pa.RecordBatch"
    num_bytes: int
    is_too_long: bool


@contextlib.contextmanager
def opened_parquet(path: Path) -> Iterator["pq.ParquetFile"]:
    """Open the file, after a check of its footer and page headers against the limits.

    Raises:
        UnreadableFileError: it is damaged, or expands too far; also if that shows only inside the block.
    """
    # Imported late: pyarrow takes 0.2 s and most files are JSON lines.
    import pyarrow as pa

    try:
        with _parquet_file(path) as file:
            _demand_bounded(file, path)
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        why = one_line(str(error), _REASON_CHARACTERS).rstrip(".")
        raise UnreadableFileError(path.name, f"is a damaged parquet file: {why}.", "Download it again.") from error


def row_batches(path: Path) -> Iterator[RowBatch]:
    """Yield all rows in order, in batches that take no more than the longest line of JSON may.

    Raises:
        UnreadableFileError: the file is damaged, or its rows expand too far.
    """
    packed_bytes = path.stat().st_size
    allowed, decoded = expanded_bytes_allowed(packed_bytes), 0
    with opened_parquet(path) as file:
        for group in range(file.metadata.num_row_groups):
            for rows in _undecoded(file, path, group, allowed=allowed):
                for batch in _in_small_batches(rows):
                    decoded += batch.num_bytes
                    if decoded > allowed:
                        raise bomb(path.name, decoded, packed_bytes=packed_bytes)
                    yield batch


def _parquet_file(path: Path, **options: Any) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    return pq.ParquetFile(
        path,
        pre_buffer=False,
        thrift_string_size_limit=_MAX_FOOTER_TEXT_BYTES,
        thrift_container_size_limit=_MAX_FOOTER_ENTRIES,
        arrow_extensions_enabled=False,
        **options,
    )


def _demand_bounded(file: "pq.ParquetFile", path: Path) -> None:
    """Refuse a file that unpacks too far or nests too deep by its footer and its page headers."""
    columns = [file.schema.column(number) for number in range(len(file.schema))]
    depths = [column.path.count(".") + 1 for column in columns]
    if max(depths, default=0) > _MAX_NESTING:
        raise UnreadableFileError(
            path.name, f"has columns nested {max(depths):,} deep, more than {_MAX_NESTING}.", "Flatten them."
        )
    if len({column.path for column in columns}) < len(columns):
        raise UnreadableFileError(path.name, "has two columns of one name.", "Rename one.")
    # Each byte is read once: page headers that many chunks share would be read as often.
    packed_bytes = path.stat().st_size
    if sum(max(0, chunk.total_compressed_size) for group in _groups(file) for chunk in _chunks(group)) > packed_bytes:
        raise OSError("its columns are larger than the file")
    expanded = 0
    for group in _groups(file):
        for pages, depth in zip(group_sums(path, _chunks(group)), depths, strict=True):
            expanded += max(pages.num_bytes, pages.num_values * _ENTRY_BYTES * depth)
    if expanded > expanded_bytes_allowed(packed_bytes):
        raise bomb(path.name, expanded, packed_bytes=packed_bytes)


def _groups(file: "pq.ParquetFile") -> "list[pq.RowGroupMetaData]":
    return [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]


def _chunks(group: "pq.RowGroupMetaData") -> "list[pq.ColumnChunkMetaData]":
    return [group.column(number) for number in range(group.num_columns)]


# --- row groups


@dataclass(frozen=True)
class _Column:
    """The limits of a decoded column of a row group.

    Attributes:
        widest: the longest value that it can hold, in bytes; an upper bound.
        is_nested: one row may have any number of its values.
    """

    path: str
    num_values: int
    widest: int
    is_nested: bool

    def most_bytes(self, num_rows: int) -> int:
        """The most bytes that `num_rows` of its rows can take."""
        return self.widest * (self.num_values if self.is_nested else min(num_rows, self.num_values))


def _undecoded(file: "pq.ParquetFile", path: Path, group: int, *, allowed: int) -> "Iterator[pa.RecordBatch]":
    """Yield batches of a row group; if they could grow too large, with texts as dictionaries."""
    columns = _columns(file, path, group)
    mean_row = file.metadata.row_group(group).total_byte_size // max(1, file.metadata.row_group(group).num_rows)
    num_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, mean_row)))
    if _most_bytes(columns, num_rows) <= allowed:
        yield from file.iter_batches(batch_size=num_rows, row_groups=[group])
        return
    names = _dictionary_columns(file, group)
    unpacked = [column for column in columns if column.path not in names]
    if _most_bytes([column for column in unpacked if column.is_nested], num_rows) > allowed:
        raise UnreadableFileError(
            path.name,
            "is written in a way that hides how long its texts are (DELTA_BYTE_ARRAY in nested columns).",
            "Write it again, with the defaults of pyarrow or pandas.",
        )
    with _parquet_file(path, metadata=file.metadata, read_dictionary=names) as packed:
        columns = _with_dictionaries_seen(packed, group, columns)
        if _most_bytes(columns, num_rows) <= allowed:
            yield from file.iter_batches(batch_size=num_rows, row_groups=[group])
            return
        widest = sum(column.widest for column in unpacked)
        num_rows = max(1, min(num_rows, _BATCH_BYTES // max(1, widest)))
        yield from packed.iter_batches(batch_size=num_rows, row_groups=[group])


def _most_bytes(columns: list[_Column], num_rows: int) -> int:
    return sum(column.most_bytes(num_rows) for column in columns)


def _columns(file: "pq.ParquetFile", path: Path, group: int) -> list[_Column]:
    columns = []
    row_group = file.metadata.row_group(group)
    for number, (chunk, pages) in enumerate(zip(_chunks(row_group), group_sums(path, _chunks(row_group)), strict=True)):
        schema = file.schema.column(number)
        widest = {"BYTE_ARRAY": pages.num_bytes, "FIXED_LEN_BYTE_ARRAY": schema.length}
        columns.append(
            _Column(
                path=schema.path,
                num_values=pages.num_values,
                widest=widest.get(chunk.physical_type, _ENTRY_BYTES),
                is_nested=schema.max_repetition_level > 0,
            )
        )
    return columns


def _dictionary_columns(file: "pq.ParquetFile", group: int) -> list[str]:
    """Columns that Arrow can keep as dictionaries; it cannot if a text is written as its difference to another."""
    return [
        chunk.path_in_schema
        for chunk in _chunks(file.metadata.row_group(group))
        if chunk.physical_type == "BYTE_ARRAY" and "DELTA_BYTE_ARRAY" not in chunk.encodings
    ]


def _with_dictionaries_seen(packed: "pq.ParquetFile", group: int, columns: list[_Column]) -> list[_Column]:
    """Return the columns; those with a dictionary page have its longest value as the widest.

    Values outside the dictionary are in the pages as they are; the sizes of the pages bound them.
    """
    chunks = _chunks(packed.metadata.row_group(group))
    first = next(packed.iter_batches(batch_size=1, row_groups=[group]), None)
    if first is None:
        return columns
    seen = list(_longest_values(first.columns))
    if len(seen) != len(columns):
        return columns
    return [
        replace(column, widest=longest) if longest is not None and chunk.has_dictionary_page else column
        for column, chunk, longest in zip(columns, chunks, seen, strict=True)
    ]


# --- arrays


def _in_small_batches(rows: "pa.RecordBatch") -> Iterator[RowBatch]:
    """Halve the rows until the decoded size of each part is within the limit of a line."""
    num_bytes = sum(_decoded_bytes(column) for column in rows.columns) + _ENTRY_BYTES * rows.num_rows
    if num_bytes <= MAX_LINE_BYTES:
        yield RowBatch(rows, num_bytes, is_too_long=False)
    elif rows.num_rows <= 1:
        # Its texts are left out, so they are not counted as expanded.
        yield RowBatch(rows, 0, is_too_long=True)
    else:
        half = rows.num_rows // 2
        yield from _in_small_batches(rows.slice(0, half))
        yield from _in_small_batches(rows.slice(half))


def _decoded_bytes(array: "pa.Array") -> int:
    """Bytes of the decoded array: a text for every reference to a dictionary, and some bytes for every entry."""
    import pyarrow as pa
    import pyarrow.compute as pc

    entries = _ENTRY_BYTES * len(array)
    if pa.types.is_dictionary(array.type):
        if not _has_texts(array.type.value_type):
            return entries + _decoded_bytes(array.dictionary)
        lengths = pc.binary_length(array.dictionary).take(array.indices)
        return entries + int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)
    inner = _inner(array)
    return entries + (sum(map(_decoded_bytes, inner)) if inner else int(array.nbytes))


def _longest_values(arrays: "list[pa.Array]") -> Iterator[int | None]:
    """Longest text of each leaf's dictionary, in the order of the file's columns; None without a dictionary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for array in arrays:
        if inner := _inner(array):
            yield from _longest_values(inner)
        elif pa.types.is_dictionary(array.type) and len(array.dictionary) and _has_texts(array.type.value_type):
            yield pc.max(pc.binary_length(array.dictionary)).as_py()
        else:
            yield None


def _inner(array: "pa.Array") -> "list[pa.Array]":
    """Return the arrays inside this one, cut to its rows; an empty list if it holds values itself."""
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray):
        return [array.storage]
    if isinstance(array, pa.MapArray):
        entries = array.offsets
        start, end = entries[0].as_py(), entries[-1].as_py()
        return [array.keys.slice(start, end - start), array.items.slice(start, end - start)]
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return [array.flatten()]
    if isinstance(array, pa.StructArray):
        return list(array.flatten())
    return []


def _has_texts(value_type: "pa.DataType") -> bool:
    import pyarrow as pa

    return value_type in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
