"""What a file is that holds no rows: named by how it begins, with what to do about it."""

import re
from dataclasses import dataclass

BEGINNING_BYTES = 512
_TAR_MAGIC, _TAR_OFFSET = b"ustar", 257
_AGAIN = "Download it again."
_AS_ROWS = "Write the rows as .jsonl or .parquet."
_UNPACK = "Unpack it, and name the file that was in it."


@dataclass(frozen=True, slots=True)
class FileSignature:
    """`kind` ends the sentence `The file is …`."""

    kind: str
    advice: str


_PICKLE = FileSignature("a Python pickle, which is never loaded since loading runs code", _AS_ROWS)
_WEB_PAGE = FileSignature(
    "a web page (HTML)", "Download the file itself, not the page that shows it (hub: `resolve` instead of `blob`)."
)
_ZIP = FileSignature("a zip archive or a spreadsheet", _UNPACK)
_ARROW = FileSignature("an Arrow file", "Convert it: `Dataset.to_parquet` of the datasets library writes parquet.")
_UTF16 = FileSignature("text in UTF-16", "Convert it: `iconv -f UTF-16 -t UTF-8 OLD > NEW`.")
_JSON_LIST = FileSignature(
    "one JSON list instead of one object per line", "Convert it: `jq -c '.[]' OLD.json > NEW.jsonl`."
)
_JSON_OVER_LINES = FileSignature(
    "JSON with objects that go over several lines", "Convert it: `jq -c . OLD.json > NEW.jsonl`."
)

_KINDS = (
    (rb"version https://git-lfs", FileSignature("a Git LFS pointer, not the data", "Fetch the data: `git lfs pull`.")),
    (rb"\s*(<!doctype html|<html)", _WEB_PAGE),
    (rb"\s*<\?xml", FileSignature("an XML document, as servers send it for an error", _AGAIN)),
    (rb"\x80[\x02-\x05]", _PICKLE),
    (rb"PK\x03\x04", _ZIP),
    (rb"ARROW1|\xff{4}", _ARROW),
    (rb"PAR1", FileSignature("a parquet file that was compressed once more", "Decompress it once.")),
    (rb"\x1f\x8b", FileSignature("a gzip file that was compressed twice", "Decompress it once.")),
    (rb"\x28\xb5\x2f\xfd|BZh|\xfd7zXZ|7z\xbc\xaf", FileSignature("compressed, and not with gzip", _UNPACK)),
    (rb"SQLite format 3\0", FileSignature("an SQLite database", _AS_ROWS)),
    (rb"\xff\xfe|\xfe\xff|(\{\0|\0\{)", _UTF16),
    (rb"\0{16}", FileSignature("filled with zero bytes: a download that was not finished", _AGAIN)),
    (rb"(\xef\xbb\xbf)?\s*\[\s*\{", _JSON_LIST),
    (rb"(\xef\xbb\xbf)?\s*\{\s*\n", _JSON_OVER_LINES),
)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), foreign) for pattern, foreign in _KINDS)


def match_signature(beginning: bytes) -> FileSignature | None:
    """What the file is, by its first `BEGINNING_BYTES`; None where that is not known.

    Example: b"<!DOCTYPE html><html>" is a web page.
    """
    if beginning[_TAR_OFFSET:].startswith(_TAR_MAGIC):
        return FileSignature("a tar archive", _UNPACK)
    return next((foreign for pattern, foreign in _PATTERNS if pattern.match(beginning)), None)
