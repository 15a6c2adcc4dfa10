"""A download that is no data is told by its first bytes, and each kind has its own way out."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.sources.peek import BEGINNING_BYTES, match_signature

ROWS = '{"chosen": "Red.", "rejected": "Blue."}\n' * 3
# What a hub's web server and a bucket answered for a wrong address, shortened.
WEB_PAGE = b'\n<!doctype html>\n<html class="">\n<head>\n<title>data/train.jsonl - Hugging Face</title>'
ACCESS_DENIED = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code>'
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
ZSTD_FRAME = bytes.fromhex("28b52ffd2400010000")


def zipped() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("rows.jsonl", ROWS)
    return sink.getvalue()


def tarred() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        facts = tarfile.TarInfo("rows.jsonl")
        facts.size = len(ROWS)
        archive.addfile(facts, io.BytesIO(ROWS.encode()))
    return sink.getvalue()


def arrow(*, stream: bool) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"chosen": ["Red."]})
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("data", "kind", "advice"),
    [
        (WEB_PAGE, "a web page (HTML)", "`resolve` instead of `blob`"),
        (ACCESS_DENIED, "an XML document, as servers send it for an error", "Download it again."),
        (LFS_POINTER, "a Git LFS pointer, not the data", "`git lfs pull`"),
        *((pickle.dumps([ROWS], protocol), "a Python pickle", "Write the rows as") for protocol in (2, 3, 4, 5)),
        (zipped(), "a zip archive or a spreadsheet", "Unpack it"),
        (tarred(), "a tar archive", "Unpack it"),
        (bz2.compress(ROWS.encode()), "compressed, and not with gzip", "Unpack it"),
        (lzma.compress(ROWS.encode()), "compressed, and not with gzip", "Unpack it"),
        (ZSTD_FRAME, "compressed, and not with gzip", "Unpack it"),
        (gzip.compress(ROWS.encode(), mtime=0), "a gzip file that was compressed twice", "Decompress it once."),
        (b"PAR1\x15\x04", "a parquet file that was compressed once more", "Decompress it once."),
        (arrow(stream=True), "an Arrow file", "to_parquet"),
        (arrow(stream=False), "an Arrow file", "to_parquet"),
        (ROWS.encode("utf-16"), "text in UTF-16", "iconv"),
        (ROWS.encode("utf-16-le"), "text in UTF-16", "iconv"),
        (ROWS.encode("utf-16-be"), "text in UTF-16", "iconv"),
        (bytes(600), "filled with zero bytes", "Download it again."),
        (json.dumps([{"chosen": 1}]).encode(), "one JSON list instead of one object per line", "jq -c '.[]'"),
        (json.dumps([{"chosen": 1}], indent=2).encode(), "one JSON list instead of one object per line", "jq -c '.[]'"),
        (json.dumps({"chosen": 1}, indent=2).encode(), "JSON with objects that go over several lines", "jq -c ."),
    ],
    ids=lambda item: item[:40] if isinstance(item, str) else "",
)
def test_a_kind_is_told_by_the_beginning_and_says_what_to_do(data: bytes, kind: str, advice: str) -> None:
    found = match_signature(data[:BEGINNING_BYTES])
    assert found is not None
    assert found.kind.startswith(kind)
    assert advice in found.advice


def test_a_database_is_told_by_its_beginning(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "rows.db")
    connection.execute("CREATE TABLE rows (chosen TEXT)")
    connection.close()
    found = match_signature((tmp_path / "rows.db").read_bytes()[:BEGINNING_BYTES])
    assert found is not None and found.kind == "an SQLite database"


@pytest.mark.parametrize("text", ["", "prompt,chosen,rejected\n", "[INFO] started\n", "chosen: Red.\n", ROWS])
def test_of_other_text_nothing_is_claimed(text: str) -> None:
    assert match_signature(text.encode()) is None
