"""What the stage would refuse is heard from the check, in seconds; what the stage only counts passes."""

import gzip
import hashlib
import json
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from containers.contracts.file_limits import MAX_LINE_BYTES
from containers.data.reader import ROWS_THAT_SHOW_THE_SCHEMA, read_rows
from containers.harness.errors import BadDataError
from tasks.sources import peek as data_peek
from tasks.sources.errors import SourceError, UnusableSourceError
from tasks.sources.peek import DataPeek, peek_data

TRL = {"prompt": "Name a colour.", "chosen": "Red.", "rejected": "Blue."}
HELPSTEER3 = {"context": "Name a colour.", "response1": "Red.", "response2": "Blue.", "overall_preference": -2}
ARENA = {"prompt": "Name a colour.", "response_a": "Red.", "response_b": "Blue.", "winner": "a"}


def lines(row: object, count: int = 3) -> bytes:
    return (json.dumps(row) + "\n").encode() * count


def noisy_lines(count: int) -> bytes:
    """Rows that shrink as text does, not a thousandfold."""
    return b"".join(lines({**TRL, "chosen": hashlib.sha256(b"%d" % number).hexdigest()}, 1) for number in range(count))


def parquet(row: dict[str, object], count: int = 3) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([row] * count, schema=pa.Table.from_pylist([row]).schema), sink)
    return bytes(sink.getvalue())


def peek(tmp_path: Path, data: bytes, *, name: str = "rows.jsonl") -> DataPeek:
    path = tmp_path / name
    path.write_bytes(data)
    return peek_data({f"dataset.train: {name}": path})


def refusal(tmp_path: Path, data: bytes, *, name: str = "rows.jsonl") -> UnusableSourceError:
    with pytest.raises(UnusableSourceError) as caught:
        peek(tmp_path, data, name=name)
    assert caught.value.problem.startswith(f"dataset.train: {name}")
    assert caught.value.advice
    return caught.value


def usable_rows(path: Path) -> int:
    """What the stage makes of the file: its good rows, 0 where it refuses it."""
    try:
        return sum(item.row is not None for item in read_rows(path))
    except BadDataError:
        return 0


# --- what passes


@pytest.mark.parametrize(
    ("row", "schema"),
    [(TRL, "TRL preference"), (HELPSTEER3, "HelpSteer3"), (ARENA, "arena")],
    ids=lambda item: str(item),
)
def test_the_schema_and_the_rows_of_every_format_are_found(tmp_path: Path, row: dict[str, object], schema: str) -> None:
    plain = lines(row)
    for name, data in (
        ("rows.jsonl", plain),
        ("last-line-without-newline.jsonl", plain.rstrip()),
        ("rows.jsonl.gz", gzip.compress(plain)),
        ("two-members.jsonl.gz", gzip.compress(lines(row, 1)) + gzip.compress(lines(row, 2))),
        ("rows.parquet", parquet(row)),
        ("unpacked-by-the-browser.jsonl.gz", plain),
        ("byte-order-mark.jsonl", b"\xef\xbb\xbf" + plain),
        ("any.name", plain),
    ):
        assert str(peek(tmp_path, data, name=name)) == f"{schema}, 3 rows", name
        assert usable_rows(tmp_path / name) == 3


def test_bad_lines_are_counted_and_one_good_row_is_enough(tmp_path: Path) -> None:
    found = peek(tmp_path, b"oops\n\n" + lines(TRL, 1) + b"[1]\n\xff\xfe\n")
    assert (found.num_bad, found.num_seen, found.num_rows) == (3, 5, 4)
    assert str(found) == "TRL preference, 4 rows, no JSON object in 3 of the first 5 lines"
    assert usable_rows(tmp_path / "rows.jsonl") == 1


def test_a_line_over_the_limit_is_skipped_and_the_next_one_still_found(tmp_path: Path) -> None:
    huge = b'{"a": "' + b"x" * (2 * MAX_LINE_BYTES + 5) + b'"}\n'
    found = peek(tmp_path, huge + lines(TRL, 2))
    assert (found.schemas, found.num_bad, found.num_seen, found.num_rows) == (("TRL preference",), 1, 3, 3)


def test_only_the_first_rows_are_parsed(tmp_path: Path) -> None:
    found = peek(tmp_path, lines(TRL, ROWS_THAT_SHOW_THE_SCHEMA) + b"oops\n" * 10)
    assert (found.num_bad, found.num_rows) == (0, ROWS_THAT_SHOW_THE_SCHEMA + 10)


def test_files_of_a_folder_may_have_different_schemas_and_one_may_be_empty(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in ("a.jsonl", "b.parquet", "c.jsonl")}
    for path, data in zip(paths.values(), (lines(ARENA), parquet(TRL), b""), strict=True):
        path.write_bytes(data)
    assert str(peek_data(paths)) == "arena and TRL preference, 6 rows"


def test_of_very_many_files_the_first_are_opened_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(TRL))
    found = peek_data({f"shard {number}": path for number in range(data_peek.MAX_FILES + 7)})
    assert str(found) == "TRL preference, rows not counted, 7 files not opened"


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_very_large_file_only_the_beginning_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(data_peek, "WHOLE_BYTES", 1000)
    data = noisy_lines(5000)
    found = peek(tmp_path, gzip.compress(data)[:-9] if packed else data)
    assert str(found) == "TRL preference, rows not counted"


# --- what is refused


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("x.jsonl", lines({"question": "?"}), "x.jsonl has no schema that is known here. Columns found: question."),
        ("x.parquet", parquet({"question": "?"}), "has no schema that is known here. Columns found: question."),
        ("x.jsonl", b"no JSON\n" * 3, "none of its first 3 lines is a JSON object; line 1 (no JSON) is no JSON"),
        ("x.jsonl", b"\n\n7\n", "none of its first 3 lines is a JSON object; line 3 (7) is JSON, but no object."),
        ("x.jsonl", b"{'a': 1}", "its only line is no JSON object; line 1 ({'a': 1}) is no JSON: Expecting property"),
        ("x.jsonl", b'{"a": "Gr\xfcn"}\n', "is not UTF-8: byte 0xfc at position 10."),
        ("x.jsonl", b"[" * 100_000, "cannot be read: maximum recursion depth"),
        ("x.jsonl", b'{"a": ' + b"1" * 5000 + b"}", "cannot be read: Exceeds the limit"),
        ("x.jsonl", b'{"a": "' + b"x" * MAX_LINE_BYTES + b'"}', "line 1 is longer than 8,388,608 bytes."),
        ("x.jsonl", b"<!DOCTYPE html>\n<html>", "is a web page (HTML)."),
        ("x.jsonl", lines(TRL).decode().encode("utf-16"), "is text in UTF-16."),
        ("x.jsonl", b" \n\n", "x.jsonl holds not one row."),
        ("x.parquet", pickle.dumps([TRL]), "is a Python pickle, which is never loaded"),
        ("x.parquet", b"Entry not found", "is no parquet file, nor JSON lines: line 1 (Entry not found)"),
        ("x.jsonl.gz", b"Entry not found", "is no gzip file, nor JSON lines: line 1 (Entry not found)"),
        ("x.jsonl.gz", gzip.compress(b"Entry not found"), "its only line is no JSON object"),
        ("x.jsonl.gz", gzip.compress(gzip.compress(lines(TRL))), "is a gzip file that was compressed twice."),
        ("x.jsonl.gz", gzip.compress(b"\n"), "x.jsonl.gz holds not one row."),
        ("x.parquet", parquet(TRL)[:-20], "is a damaged parquet file: Parquet magic bytes not found"),
        ("x.parquet", parquet(TRL)[:4] + b"x" * 50 + b"PAR1", "is a damaged parquet file:"),
        ("x.parquet", parquet(TRL, 0), "x.parquet holds not one row."),
    ],
    ids=lambda item: item[:40] if isinstance(item, str) else "",
)
def test_a_file_that_the_stage_could_make_nothing_of_is_named_with_the_reason(
    tmp_path: Path, name: str, data: bytes, problem: str
) -> None:
    refused = refusal(tmp_path, data, name=name)
    assert problem in refused.problem
    assert "\n" not in str(refused)
    assert usable_rows(tmp_path / name) == 0


def test_a_truncated_gzip_is_refused_with_the_place_where_it_ends(tmp_path: Path) -> None:
    packed = gzip.compress(noisy_lines(20_000))
    refused = refusal(tmp_path, packed[: len(packed) // 2], name="x.jsonl.gz")
    assert "x.jsonl.gz is a damaged gzip file after line " in refused.problem
    assert "ended before the end-of-stream marker" in refused.problem
    line = int(refused.problem.split("after line ")[1].split(":")[0].replace(",", ""))
    assert 8_000 < line < 12_000


@pytest.mark.parametrize(
    ("place", "damage", "why"),
    [(-6, b"?", "CRC check failed"), (5_000, b"\xff" * 30, "Error -3 while decompressing data")],
    ids=["checksum", "stream"],
)
def test_a_damaged_gzip_is_refused_although_its_first_rows_are_good(
    tmp_path: Path, place: int, damage: bytes, why: str
) -> None:
    packed = bytearray(gzip.compress(noisy_lines(20_000)))
    packed[place : place + len(damage)] = damage
    refused = refusal(tmp_path, bytes(packed), name="x.jsonl.gz")
    assert "is a damaged gzip file after line " in refused.problem
    assert why in refused.problem


def test_something_behind_the_end_of_a_gzip_is_damage_to_check_and_stage(tmp_path: Path) -> None:
    refused = refusal(tmp_path, gzip.compress(lines(TRL)) + b"<html>", name="x.jsonl.gz")
    assert "is a damaged gzip file after line 3: Not a gzipped file" in refused.problem
    assert usable_rows(tmp_path / "x.jsonl.gz") == 0


@pytest.mark.waits
def test_a_gzip_bomb_costs_neither_memory_nor_time(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(16 * 1024**2)) * 64  # 1 GiB of zeros in one line, out of 1 MB
    tracemalloc.start()
    try:
        refused = refusal(tmp_path, bomb, name="x.jsonl.gz")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "expands more than 200-fold" in refused.problem
    assert peak_bytes < 32 * 1024**2


@pytest.mark.waits
def test_a_parquet_bomb_is_named_by_its_footer(tmp_path: Path) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"chosen": ["x" * 4 * 1024**2] * 60}), sink, compression="zstd", use_dictionary=False)
    refused = refusal(tmp_path, bytes(sink.getvalue()), name="x.parquet")
    assert "x.parquet expands more than 200-fold (251,6" in refused.problem
    assert refused.advice == "Check where it comes from."


def test_one_bad_file_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(TRL))
    (tmp_path / "b.jsonl").write_bytes(lines({"question": "?"}))
    with pytest.raises(UnusableSourceError, match=r"^b\.jsonl has no schema"):
        peek_data({name: tmp_path / name for name in ("a.jsonl", "b.jsonl")})


def test_many_files_without_a_row_are_named_by_the_first(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(b"\n")
    with pytest.raises(UnusableSourceError, match=r"^a\.jsonl \(and 1 more\) holds not one row\."):
        peek_data({name: tmp_path / name for name in ("a.jsonl", "b.jsonl")})


def test_a_file_that_vanished_meanwhile_is_no_crash(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^x cannot be read: .*No such file"):
        peek_data({"x": tmp_path / "gone.jsonl"})


def test_foreign_text_cannot_flood_or_steer_the_terminal(tmp_path: Path) -> None:
    refused = refusal(tmp_path, b"\x1b[2J" + b"x" * 100_000)
    assert "\\x1b[2Jxxx" in refused.problem and "\x1b" not in refused.problem
    assert len(refused.problem) < 300


# --- the check and the stage


def test_check_and_stage_say_the_same_of_an_unknown_schema(tmp_path: Path) -> None:
    refused = refusal(tmp_path, lines({"question": "?", "good": "a", "bad": "b"}))
    with pytest.raises(BadDataError) as stage:
        list(read_rows(tmp_path / "rows.jsonl"))
    assert str(refused) == f"dataset.train: {stage.value}"


@pytest.mark.waits
def test_parquet_is_imported_only_for_a_parquet_file(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(lines(TRL))
    (tmp_path / "rows.parquet").write_bytes(parquet(TRL))
    code = (
        "import sys; from pathlib import Path; from tasks.sources.peek import peek_data\n"
        "for name in sys.argv[1:]: peek_data({'x': Path(name)}); print('pyarrow' in sys.modules)"
    )
    arguments = [str(tmp_path / name) for name in ("rows.jsonl", "rows.parquet")]
    said = subprocess.check_output([sys.executable, "-c", code, *arguments], text=True)
    assert said.split() == ["False", "True"]


# --- real data


@pytest.mark.shared_data
def test_the_real_files_are_told_apart(shared_data: Path) -> None:
    found = {
        name: str(peek_data({name: shared_data / name}))
        for name in (
            "helpsteer3_schema_train.jsonl.gz",
            "helpsteer3_schema_malformed.jsonl",
            "hh_helpful_train.jsonl.gz",
            "human_pref_pairs.jsonl.gz",
            "llmbar_pairs.jsonl",
        )
    }
    assert found == {
        "helpsteer3_schema_train.jsonl.gz": "HelpSteer3, 2,817 rows",
        "helpsteer3_schema_malformed.jsonl": "HelpSteer3, 57 rows, no JSON object in 4 of the first 58 lines",
        "hh_helpful_train.jsonl.gz": "TRL preference, 6,000 rows",
        "human_pref_pairs.jsonl.gz": "arena, 659 rows",
        "llmbar_pairs.jsonl": "TRL preference, 176 rows",
    }


@pytest.mark.shared_data
def test_check_and_stage_agree_on_which_real_files_have_a_schema(shared_data: Path) -> None:
    for path in sorted(shared_data.glob("*.jsonl*")):
        try:
            next(read_rows(path))
            refused = ""
        except BadDataError as error:
            refused = str(error)
        if refused:
            with pytest.raises(UnusableSourceError) as caught:
                peek_data({path.name: path})
            assert str(caught.value) == refused
        else:
            assert peek_data({path.name: path}).schemas


@pytest.mark.parametrize("packed", [False, True])
def test_a_row_before_millions_of_blank_lines_is_no_file_of_rows(tmp_path: Path, packed: bool) -> None:
    data = lines(TRL, 1) + b"\n" * 2_000_000
    found = refusal(tmp_path, gzip.compress(data) if packed else data, name="rows.jsonl.gz" if packed else "rows.jsonl")
    assert "holds 1 rows in its first" in found.problem
