"""Completions that the policy wrote while it trained; the log outlives a killed attempt, as checkpoints do."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("prompt", _MESSAGES),
        ("completion", pa.string()),
        ("score", pa.float64()),
        ("reward", pa.float64()),
        ("advantage", pa.float64()),
        ("num_tokens", pa.int64()),
        ("ended", pa.bool_()),
    ]
)


class CompletionLog:
    """Rows in a jsonl file, one per completion; the steps never decrease.

    Args:
        path: the file; its folder exists.
        resumed_from_step: rows of later steps are dropped, for those steps run again. 0 starts afresh.
    """

    def __init__(self, path: Path, *, resumed_from_step: int) -> None:
        self._path = path
        kept = [row for row in self._rows() if row["step"] <= resumed_from_step]
        path.write_text("".join(_line(row) for row in kept), encoding="utf-8")

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows; each has every column of `completions.parquet`."""
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write("".join(_line(row) for row in rows))

    def write_parquet(self, path: Path) -> None:
        """All rows so far as a parquet file."""
        parquet.write_table(pa.Table.from_pylist(self._rows(), schema=_SCHEMA), path)

    def _rows(self) -> list[dict[str, Any]]:
        """All rows but a last line that a killed attempt left unfinished."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n"
