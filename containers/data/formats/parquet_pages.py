"""The unpacked size of a parquet file's pages by their headers; the footer is another part, and may say less.

A reader unpacks by the page headers. They are structs of Thrift's compact protocol, each before its page.

Source: PageHeader in apache/parquet-format, src/main/thrift/parquet.thrift; apache/thrift,
doc/specs/thrift-compact-protocol.md.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# Fields of a PageHeader, and the first field of the structs in it that count values.
_UNPACKED_BYTES, _PACKED_BYTES = 2, 3
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 5, 7, 8
_NUM_VALUES = 1
# Types of the compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = (*range(11), 12)
# Far over what a header has: three structs inside each other, no list, and texts in its statistics.
_MAX_DEPTH = 8
_MAX_ENTRIES = 1000
_MAX_FIELDS = 100

Struct = dict[int, "int | Struct"]


class PageSums(NamedTuple):
    """The sums over a column chunk's page headers: bytes without the headers, and values."""

    num_bytes: int
    num_values: int


def page_sums(stream: BinaryIO, *, start: int, length: int) -> PageSums:
    """Sum up the page headers of a column chunk. Pages are skipped, so only headers take memory and time.

    Args:
        start: where the first page begins, its dictionary if it has one.
        length: bytes of all pages in the file, with their headers.

    Raises:
        ValueError: these bytes are no pages: damaged, encrypted, or forged.
    """
    if start < 0 or length < 0:
        raise ValueError("a chunk before the file's beginning")
    stream.seek(start)
    num_bytes = data_values = dictionary_values = 0
    while stream.tell() < start + length:
        header = _struct(stream, depth=0)
        packed = _count(header, _PACKED_BYTES)
        num_bytes += _count(header, _UNPACKED_BYTES)
        data_values += max(_values(header, _DATA_PAGE), _values(header, _DATA_PAGE_V2))
        dictionary_values += _values(header, _DICTIONARY_PAGE)
        stream.seek(packed, 1)
    return PageSums(num_bytes, max(data_values, dictionary_values))


def group_sums(path: Path, chunks: "Iterable[pq.ColumnChunkMetaData]") -> list[PageSums]:
    """Unpacked size of each column chunk of a row group: by its page headers or by the footer, the larger one.

    Raises:
        OSError: a chunk is damaged, encrypted, or forged; the message names its column.
    """
    found = []
    with open(path, "rb") as stream:
        for chunk in chunks:
            start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
            # As Arrow does; a chunk without values has no data page and no offset of one.
            if dictionary is not None and dictionary > 0 and (dictionary < start or start == 0):
                start = dictionary
            try:
                pages = page_sums(stream, start=start, length=chunk.total_compressed_size)
            except (ValueError, OverflowError) as error:
                why = f"column {chunk.path_in_schema} is damaged or encrypted; it has {error}"
                raise OSError(why) from error
            num_bytes = max(pages.num_bytes, chunk.total_uncompressed_size)
            found.append(PageSums(num_bytes, max(pages.num_values, chunk.num_values)))
    return found


def _count(struct: Struct, field: int) -> int:
    value = struct.get(field)
    if not isinstance(value, int) or value < 0:
        raise ValueError("a page header without its sizes")
    return value


def _values(header: Struct, field: int) -> int:
    inner = header.get(field)
    return _count(inner, _NUM_VALUES) if isinstance(inner, dict) else 0


def _struct(stream: BinaryIO, *, depth: int) -> Struct:
    """Read the 32-bit numbers and the structs in a struct; skip its other fields."""
    if depth > _MAX_DEPTH:
        raise ValueError("a page header that nests too deep")
    found: Struct = {}
    field = 0
    for _ in range(_MAX_FIELDS):
        head = _byte(stream)
        if head == _STOP:
            return found
        field = field + (head >> 4) if head >> 4 else _signed(stream, bits=16)
        kind = head & 15
        # Readers cut a larger number to its lower bits, and would see another field.
        if field >= 2**15:
            raise ValueError("a page header with a field of no number")
        found.pop(field, None)  # the last of two equal fields counts
        if kind == _I32:
            found[field] = _signed(stream, bits=32)
        elif kind == _STRUCT:
            found[field] = _struct(stream, depth=depth + 1)
        elif kind not in (_TRUE, _FALSE):  # their type is their value
            _skip(stream, kind, depth=depth + 1)
    raise ValueError("a page header with too many fields")


def _skip(stream: BinaryIO, kind: int, *, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError("a page header that nests too deep")
    if kind in (_TRUE, _FALSE, _BYTE):
        _byte(stream)
    elif kind in (_I16, _I32, _I64):
        _varint(stream)
    elif kind == _DOUBLE:
        stream.seek(8, 1)
    elif kind == _BINARY:
        stream.seek(_length(stream), 1)
    elif kind in (_LIST, _SET):
        head = _byte(stream)
        count = _length(stream) if head >> 4 == 15 else head >> 4
        if count > _MAX_ENTRIES:
            raise ValueError("a page header with too many entries")
        for _ in range(count):
            _skip(stream, head & 15, depth=depth + 1)
    elif kind == _STRUCT:
        _struct(stream, depth=depth)
    else:
        raise ValueError("a page header with a value of an unknown type")


def _byte(stream: BinaryIO) -> int:
    found = stream.read(1)
    if not found:
        raise ValueError("a page header that is cut off")
    return found[0]


def _varint(stream: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        found = _byte(stream)
        value |= (found & 127) << shift
        if found < 128:
            return value
    raise ValueError("a page header with a number without an end")


def _length(stream: BinaryIO) -> int:
    length = _varint(stream)
    if length >= 2**31:
        raise ValueError("a page header with a length beyond 31 bits")
    return length


def _signed(stream: BinaryIO, *, bits: int) -> int:
    value = _varint(stream)
    if value >= 2**bits:
        raise ValueError(f"a page header with a number beyond {bits} bits")
    return (value >> 1) ^ -(value & 1)
