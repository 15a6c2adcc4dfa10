"""A data file comes from anywhere: whatever lies in it must be read, counted or refused, never crash the stage."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from containers.contracts.file_limits import MAX_LINE_BYTES
from containers.data.formats.files import Line, data_files, read_lines
from containers.harness.errors import BadDataError


def reasons(path: Path) -> list[str]:
    return [line.reason for line in read_lines(path)]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"a": 1}', ""),
        (b'\xef\xbb\xbf{"a": 1}', ""),
        (b'{"a": 1}\r', ""),
        (b"", "blank_line"),
        (b" \t", "blank_line"),
        (b'{"a": ', "invalid_json"),
        (b"words", "invalid_json"),
        (b'{"a": "\xff"}', "invalid_utf8"),
        (b"[1, 2]", "not_an_object"),
        (b"null", "not_an_object"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"a": ' + b"1" * 5000 + b"}", "invalid_json"),
    ],
)
def test_a_line_is_an_object_or_has_a_named_reason(tmp_path: Path, raw: bytes, reason: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(raw + b"\n" + b'{"last": true}\n')
    for fast in (False, True):
        first, last = read_lines(path, fast=fast)
        assert (first.reason, first.number) == (reason, 1)
        assert (first.value is None) == bool(reason)
        assert (last.value, last.number) == ({"last": True}, 2)


def both_ways(folder: Path, raw: bytes) -> tuple[Line, Line]:
    """The second line of a file, read exactly and fast; without the bytes that only the latter keeps.

    The second, because the first bytes of a file tell its kind: two of them make it a (damaged) gzip file.
    """
    path = folder / "x.jsonl"
    path.write_bytes(b"{}\n" + raw + b"\n")
    (_, exact), (_, fast) = read_lines(path), read_lines(path, fast=True)
    return exact, fast._replace(raw=b"")


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    value=st.dictionaries(st.text(), _values, max_size=4),
    ascii_only=st.booleans(),
    cut=st.integers(0, 200),
    flipped=st.binary(max_size=2),
)
@example(value={"a": float("nan"), "b": float("-inf"), "c": -0.0}, ascii_only=True, cut=200, flipped=b"")
@example(value={"a": "\ud800", "b": "\0"}, ascii_only=True, cut=200, flipped=b"")
@example(value={"a": 5e-324, "b": 1.7976931348623157e308}, ascii_only=True, cut=200, flipped=b"")
@example(value={}, ascii_only=True, cut=0, flipped=b"\x1f\x8b")
def test_reading_fast_gives_what_reading_exactly_gives_of_good_and_of_damaged_lines(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, object], ascii_only: bool, cut: int, flipped: bytes
) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass").replace(b"\n", b" ")
    damaged = raw[:cut] + flipped.replace(b"\n", b"") + raw[cut:]
    for line in (raw, damaged):
        exact, fast = both_ways(tmp_path_factory.getbasetemp(), line)
        # As text, in which NaN equals NaN and 0 differs from -0.0.
        assert repr(fast) == repr(exact)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": -0}',
        b'{"a": 1e400}',
        b'{"a": 0.1000000000000000055511151231257827}',
        b'{"a": [18446744073709551615, -9223372036854775808]}',
        b"{} {}",
    ],
)
def test_reading_fast_takes_peculiar_json_as_reading_exactly_does(tmp_path: Path, raw: bytes) -> None:
    exact, fast = both_ways(tmp_path, raw)
    assert repr(fast) == repr(exact)


def test_a_whole_number_beyond_64_bits_is_read_again_exactly(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 123456789012345678901234567890}\n')
    (line,) = read_lines(path, fast=True)
    assert line.value == {"a": 1.2345678901234568e29}
    assert line.exactly() == Line(1, {"a": 123456789012345678901234567890})


def test_a_line_over_the_limit_is_refused_unread_and_the_next_line_is_still_found(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": "' + b"x" * (2 * MAX_LINE_BYTES + 5) + b'"}\n{"b": 2}\n')
    assert [(line.number, line.reason) for line in read_lines(path)] == [(1, "line_too_long"), (2, "")]


def test_the_last_line_needs_no_newline(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"a": 1}')
    assert [line.value for line in read_lines(tmp_path / "x.jsonl")] == [{"a": 1}]


def test_the_kind_of_file_is_told_by_its_content(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": ["x"]}, {"a": None, "b": []}]
    plain, packed, table = tmp_path / "one", tmp_path / "two", tmp_path / "three"
    plain.write_text("".join(json.dumps(row) + "\n" for row in rows))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    pq.write_table(pa.Table.from_pylist(rows), table)
    for path in (plain, packed, table):
        assert [line.value for line in read_lines(path)] == rows


def test_a_truncated_gzip_is_refused_with_the_last_good_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    packed = gzip.compress(b"".join(b'{"a": %d}\n' % number for number in range(5000)))
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(BadDataError, match=r"x\.jsonl\.gz is a damaged gzip file after line \d+"):
        reasons(path)


def test_a_gzip_with_flipped_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    packed = bytearray(gzip.compress(b"".join(b'{"a": %d}\n' % number for number in range(5000))))
    packed[200:260] = bytes(60)
    path.write_bytes(packed)
    with pytest.raises(BadDataError, match="is a damaged gzip file after line"):
        reasons(path)


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    block = gzip.compress(bytes(16 * 1024**2))
    path.write_bytes(block * 64)  # 1 GiB of zeros in one line, out of 1 MB
    with pytest.raises(BadDataError, match=r"bomb\.jsonl\.gz expands more than 200-fold"):
        reasons(path)


@pytest.mark.waits
@pytest.mark.parametrize("line", [b"\n", b"\r\n", b" \t \n", b"7\n"], ids=["blank", "crlf", "spaces", "number"])
@pytest.mark.parametrize("packed", [True, False])
def test_lines_without_a_row_are_refused_after_a_hundred_thousand_and_not_after_all(
    tmp_path: Path, line: bytes, packed: bool
) -> None:
    block = line * 1_000_000
    path = tmp_path / "x.jsonl"
    path.write_bytes(gzip.compress(block) * 600 if packed else block)
    seen = 0
    with pytest.raises(BadDataError, match=r"x\.jsonl holds 0 rows in its first 100,001 lines; the others are blank"):
        for found in read_lines(path, fast=True):
            seen = found.number
    assert seen == 100_000


def test_a_blank_line_after_every_row_or_a_few_are_no_reason_to_refuse_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes((b'{"a": 1}' + b"\n" * 10) * 20_000)
    assert sum(line.value is not None for line in read_lines(path, fast=True)) == 20_000


def test_one_endless_line_in_many_gzip_members_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b"") * 1000 + gzip.compress(b"{" + b" " * 16 * 1024**2) * 64)
    tracemalloc.start()
    try:
        with pytest.raises(BadDataError, match="expands more than 200-fold"):
            reasons(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * MAX_LINE_BYTES


def test_a_damaged_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(BadDataError, match=r"x\.parquet is a damaged parquet file"):
        reasons(path)


def test_a_folder_gives_its_data_files_in_order_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".ipynb_checkpoints").mkdir()
    for name in ("b.jsonl", "a.parquet", "README.md", "sub/c.jsonl.gz", ".ipynb_checkpoints/b.jsonl", ".d.jsonl"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in data_files(tmp_path)] == ["a.parquet", "b.jsonl", "c.jsonl.gz"]


def test_a_folder_without_data_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BadDataError, match=r"holds no data file.*notes\.txt"):
        data_files(tmp_path)


def test_a_path_that_is_not_there_is_bad_data(tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match="does not exist"):
        data_files(tmp_path / "nothing")
