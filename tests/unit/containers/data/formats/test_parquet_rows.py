"""A small file must not fill the memory: what its rows take once decoded is known before they are decoded."""

import base64
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from containers.contracts.file_limits import MAX_LINE_BYTES
from containers.data.formats.errors import UnreadableFileError
from containers.data.formats.files import read_lines
from containers.data.formats.parquet_pages import page_sums
from containers.data.formats.parquet_rows import row_batches
from containers.harness.errors import BadDataError

MIB = 1024**2
LONG = "x" * (4 * MIB)


def write(path: Path, table: pa.Table, **options: object) -> Path:
    """A file of one row group whose dictionaries are as large as they need."""
    large = {"compression": "zstd", "dictionary_pagesize_limit": 2**30, "data_page_size": 2**30, "store_schema": False}
    pq.write_table(table, path, **{**large, **options})
    return path


def referring(texts: list[str], places: list[int]) -> pa.Array:
    """Texts written once, and rows that refer to them."""
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(texts))


def flat(path: Path) -> Path:
    """A thousand rows that refer to one text of 4 MiB."""
    pairs = {name: referring(["p"], [0] * 1000) for name in ("prompt", "rejected")}
    return write(path, pa.table({**pairs, "chosen": referring([LONG], [0] * 1000)}))


def late(path: Path) -> Path:
    """The same after rows that look harmless."""
    return write(path, pa.table({"a": referring(["p", LONG], [0] * 1000 + [1] * 1000)}))


def nested(path: Path) -> Path:
    """One row, whose conversation has a thousand turns."""
    turns = pa.StructArray.from_arrays([referring(["user"], [0] * 1000), referring([LONG], [0] * 1000)], ["role", "c"])
    return write(path, pa.table({"prompt": pa.ListArray.from_arrays([0, 1000], turns)}))


def differences(path: Path) -> Path:
    """Every text is written as the difference to the one before: none."""
    return write(path, pa.table({"a": [LONG] * 60}), use_dictionary=False, column_encoding={"a": "DELTA_BYTE_ARRAY"})


def nested_differences(path: Path) -> Path:
    """The same inside of one row."""
    column = pa.ListArray.from_arrays([0, 60], pa.array([LONG] * 60))
    encoding = {"a.list.element": "DELTA_BYTE_ARRAY"}
    return write(path, pa.table({"a": column}), use_dictionary=False, column_encoding=encoding)


def empty_entries(path: Path) -> Path:
    """One row with a list of 20 million nulls."""
    return write(path, pa.table({"a": pa.ListArray.from_arrays([0, 20_000_000], pa.nulls(20_000_000, pa.string()))}))


def plain_page(path: Path) -> Path:
    """Pages of one repeated byte, compressed ten-thousandfold."""
    return write(path, pa.table({"a": [LONG] * 60}), use_dictionary=False)


def varint(number: int, *, num_bytes: int = 0) -> bytes:
    """A positive number as Thrift's compact protocol writes it; with `num_bytes`, drawn out to so many."""
    left, found = number << 1, []
    while left or not found or len(found) < num_bytes:
        found.append(left & 127 | 128)
        left >>= 7
    return bytes([*found[:-1], found[-1] & 127])


def forged(path: Path, **sizes: tuple[int, int]) -> Path:
    """The file with other numbers in its footer, each as long as the true one."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:]
    for true, told in sizes.values():
        assert varint(true) in footer
        footer = footer.replace(varint(true), varint(told, num_bytes=len(varint(true))))
    path.write_bytes(data[:start] + footer)
    return path


# 5,000 rows that refer to a text of 64 MiB, by pyarrow 25.0.1; the footer was changed, and says that it is short.
FALSE_FOOTER = (
    "UEFSMRUEFYiAgAQVugJMFQIVABIAACi1L/2ASAQAQABsAAAoAABAAHgBAPj/OdACAgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgC"
    "ABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIA"
    "EHgCABB4AgAQeCEAAHh4eHgVABUWFSgsFZBOFRAVBhUGHDYAAAAAKLUv/SALWQAAAwAAAJBOAQGQTgAVBBksNQAYBnNjaGVtYRUCABUMJQIY"
    "BnByb21wdCUATBwAAAAWkE4ZHBkcJgAcFQwZNQAGEBkYBnByb21wdBUMFpBOFrCJgAAWsgMm5gImCBw2AAAZLBUEFQAVAgAVABUQFQIAPBaA"
    "gICgnAEZBhkmAJBOAAAAFrCJgAAWkE4mCBayAwAoIHBhcnF1ZXQtY3BwLWFycm93IHZlcnNpb24gMjUuMC4xGRwcAAAArAAAAFBBUjE="
)


def false_footer(path: Path) -> Path:
    """One text whose page says how long it is, and whose footer says less: 3.2 GB were taken."""
    path.write_bytes(base64.b64decode(FALSE_FOOTER))
    return path


def false_footer_of_entries(path: Path) -> Path:
    """A list of 20 million nulls, of which the footer tells one."""
    empty_entries(path)
    return forged(path, values=(pq.read_metadata(path).row_group(0).column(0).num_values, 1))


BOMBS: list[Callable[[Path], Path]] = [flat, late, nested_differences, nested, differences, empty_entries, plain_page]
BOMBS += [false_footer, false_footer_of_entries]


@pytest.mark.waits
@pytest.mark.parametrize("make", BOMBS, ids=lambda make: make.__name__)
def test_a_file_that_would_fill_the_memory_is_refused_or_its_row_left_out_in_bounded_memory(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path / "bomb.parquet")
    assert path.stat().st_size < 200_000
    program = (
        "import resource, sys; from pathlib import Path\n"
        "import pyarrow.parquet\n"
        "from containers.harness.errors import BadDataError\n"
        "from containers.data.formats.files import read_lines\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    said = [line.reason for line in read_lines(Path(sys.argv[1]))]\n"
        "except BadDataError as error:\n"
        "    said = str(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, said, sep='\\n')\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True, preexec_fn=_limit_memory
    )
    grown_kib, said = found.stdout.split("\n", 1)
    # 64 MiB of texts may come, and are held by the list here; a few of them exist twice while they are decoded.
    assert int(grown_kib) < 400 * 1024
    assert (
        "bomb.parquet expands more than 200-fold" in said
        or "hides how long its texts are" in said
        or (said.strip() == "['line_too_long']")
    )


def _limit_memory() -> None:
    """Addresses, not pages: allocators reserve more than they use."""
    resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))


def test_a_row_over_the_limit_of_a_line_is_left_out_and_its_neighbours_are_read(tmp_path: Path) -> None:
    texts = ["first", "y" * (MAX_LINE_BYTES + 1), "last"]
    for number, options in enumerate(({}, {"use_dictionary": False})):
        path = write(tmp_path / f"{number}.parquet", pa.table({"a": texts}), compression="none", **options)
        lines = list(read_lines(path))
        assert [(line.number, line.reason) for line in lines] == [(1, ""), (2, "line_too_long"), (3, "")]
        assert [line.value for line in lines if line.value] == [{"a": "first"}, {"a": "last"}]


def test_rows_of_a_suspicious_file_that_turns_out_harmless_are_read_as_they_are(tmp_path: Path) -> None:
    """One long text that one row refers to; every other row could have."""
    places = [1, *([0] * 1000), 2]
    turns = pa.StructArray.from_arrays([referring(["t", LONG, "ü"], places)], ["content"])
    offsets = [*range(len(places)), len(places)]
    columns = {
        "a": referring(["s", LONG, "ü"], places),
        "b": pa.ListArray.from_arrays(offsets, turns),
        "c": pa.array([None, *range(len(places) - 1)]),
        "d": pa.array([[("k", "v")]] * len(places), pa.map_(pa.string(), pa.string())),
    }
    path = write(tmp_path / "x.parquet", pa.table(columns))
    found = [row for batch in row_batches(path) for row in batch.rows.to_pylist() if not batch.is_too_long]
    # The first row has both long texts: 8 MiB and a little.
    assert found == pa.table(columns).to_pylist()[1:]
    assert [line.reason for line in read_lines(path)] == ["line_too_long"] + [""] * (len(places) - 1)


@pytest.mark.waits
def test_thousands_of_columns_and_row_groups_are_read(tmp_path: Path) -> None:
    wide = write(tmp_path / "wide.parquet", pa.table({f"c{number}": ["x"] for number in range(3000)}))
    (line,) = read_lines(wide)
    assert line.value is not None and len(line.value) == 3000
    cut = write(tmp_path / "cut.parquet", pa.table({"a": list(range(2000))}), row_group_size=1)
    assert [line.value for line in read_lines(cut)] == [{"a": number} for number in range(2000)]


@pytest.mark.waits
def test_a_hostile_schema_is_refused(tmp_path: Path) -> None:
    deep = pa.int32()
    for _ in range(150):
        deep = pa.struct([("a", deep)])
    path = write(tmp_path / "deep.parquet", pa.table({"a": pa.nulls(1, deep)}))
    with pytest.raises(UnreadableFileError, match=r"nested 151 deep, more than 100\. Flatten them"):
        list(row_batches(path))
    path = write(tmp_path / "wide.parquet", pa.table({f"c{number}": [1] for number in range(11_000)}))
    with pytest.raises(UnreadableFileError, match=r"is a damaged parquet file: .*[Tt]hrift"):
        list(row_batches(path))
    path = write(tmp_path / "twice.parquet", pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]))
    with pytest.raises(BadDataError, match="two columns of one name"):
        list(read_lines(path))


def test_a_footer_that_claims_a_huge_text_is_damaged(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.parquet", pa.table({"a": [1]}).replace_schema_metadata({"k": "v" * (17 * MIB)}), store_schema=True
    )
    with pytest.raises(UnreadableFileError, match=r"is a damaged parquet file: .*[Tt]hrift"):
        list(row_batches(path))


def patched(path: Path, old: bytes, new: bytes) -> Path:
    """The file with other bytes at its first page, which begins behind four bytes of magic."""
    data = path.read_bytes()
    assert data[4:].startswith(old)
    path.write_bytes(data[:4] + new + data[4 + len(old) :])
    return path


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"\x00", "a page header without its sizes"),
        (b"\x1c" * 9, "a page header that nests too deep"),
        (b"\x16" + b"\xff" * 10, "a page header with a number without an end"),
        (b"\x18\xff\xff\xff\xff\x7f", "a page header with a length beyond 31 bits"),
        (b"\x15\xff\xff\xff\xff\x7f", "a page header with a number beyond 32 bits"),
        (b"\x05\x84\x80\x08\x00", "a page header with a number beyond 16 bits"),
        (b"\x19\xf1\xff\xff\x7f", "a page header with too many entries"),
        (b"\x15\x00" * 9 + b"\x1d", "a page header with a value of an unknown type"),
        (b"\x18\xff\xff\xff\x07", "a page header that is cut off"),
        (b"\x11" * 101, "a page header with too many fields"),
    ],
)
def test_a_forged_page_header_is_damage_that_is_named(tmp_path: Path, head: bytes, said: str) -> None:
    path = write(tmp_path / "x.parquet", pa.table({"a": ["x" * 500]}), compression="none", use_dictionary=False)
    patched(path, path.read_bytes()[4 : 4 + len(head)], head)
    with pytest.raises(UnreadableFileError, match=f"column a is damaged or encrypted; it has {said}"):
        list(row_batches(path))


def test_chunks_that_share_pages_are_not_read_again_and_again(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", pa.table({"a": ["x" * 300_000]}), compression="none", use_dictionary=False)
    size = pq.read_metadata(path).row_group(0).column(0).total_compressed_size
    forged(path, size=(size, size * 3))
    with pytest.raises(UnreadableFileError, match="columns are larger than the file"):
        list(row_batches(path))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
def test_page_headers_of_ordinary_files_say_no_more_than_their_footer(
    tmp_path: Path, version: str, compression: str
) -> None:
    rows = range(3000)
    columns = {"a": [f"text {row}" * 9 for row in rows], "b": [[str(row)] * 3 for row in rows], "c": [*rows]}
    path = write(
        tmp_path / "x.parquet",
        pa.table(columns),
        compression=compression,
        data_page_version=version,
        row_group_size=700,
        data_page_size=1000,
    )
    assert [row for batch in row_batches(path) for row in batch.rows.to_pylist()] == pa.table(columns).to_pylist()
    metadata = pq.read_metadata(path)
    with open(path, "rb") as stream:
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(number)
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                found = page_sums(stream, start=start, length=chunk.total_compressed_size)
                assert 0.5 * chunk.total_uncompressed_size < found.num_bytes <= chunk.total_uncompressed_size
                assert found.num_values == chunk.num_values


def test_an_encrypted_file_is_told_as_such(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", pa.table({"a": ["x"]}))
    data = path.read_bytes()
    path.write_bytes(b"PARE" + data[4:-4] + b"PARE")
    with pytest.raises(UnreadableFileError, match=r"(?i)encrypt"):
        list(row_batches(path))
