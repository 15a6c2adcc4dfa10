"""Log of the policy's completions during training; it survives a killed attempt, as checkpoints do."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from containers.contracts.digests import write_atomically

_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_COLUMNS = [
    ("step", pa.int64()),
    ("prompt", _MESSAGES),
    ("answer", pa.string()),
    ("completion", pa.string()),
    ("reward", pa.float64()),
    ("advantage", pa.float64()),
    ("num_tokens", pa.int64()),
    ("ended", pa.bool_()),
    ("no_value", pa.string()),
]
# With a critic: the text of each token, and what was expected before it.
_OF_TOKENS = [("tokens", pa.list_(pa.string())), ("expected", pa.list_(pa.float32()))]


class CompletionLog:
    """Rows in a jsonl file, one per completion; the steps never decrease.

    Args:
        path: the file; its folder exists.
        terms: names of the reward's terms, each with a column `value_NAME`.
        has_critic: there are columns for what a critic expected.
        resumed_from_step: rows of later steps are dropped, because those steps run again. 0: starts empty.

    Attributes:
        num_unreadable: number of skipped lines that a full disk or a power cut left unreadable.
    """

    def __init__(self, path: Path, *, terms: Sequence[str], resumed_from_step: int, has_critic: bool = False) -> None:
        self.num_unreadable = 0
        of_tokens = _OF_TOKENS if has_critic else []
        self._schema = pa.schema([*_COLUMNS, *of_tokens, *((f"value_{term}", pa.float64()) for term in terms)])
        self._path = path
        kept = [row for row in self._rows() if row["step"] <= resumed_from_step]
        write_atomically(path, "".join(_line(row) for row in kept))

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows; each has every column of `completions.parquet`. They survive a power cut."""
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write("".join(_line(row) for row in rows))
            stream.flush()
            os.fsync(stream.fileno())

    def write_parquet(self, path: Path) -> None:
        """Write all rows so far as a parquet file."""
        parquet.write_table(pa.Table.from_pylist(self._rows(), schema=self._schema), path)

    def _rows(self) -> list[dict[str, Any]]:
        """Return all readable rows; a killed attempt may have left the last one unfinished."""
        rows, num_unreadable = [], 0
        text = self._path.read_text(encoding="utf-8", errors="replace") if self._path.exists() else ""
        for line in filter(None, text.split("\n")):
            try:
                row = json.loads(line)
                rows.append({name: row[name] for name in self._schema.names})
            except (ValueError, KeyError, TypeError):
                num_unreadable += 1
        self.num_unreadable = max(self.num_unreadable, num_unreadable)
        return rows


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(dict(row), ensure_ascii=False, allow_nan=False) + "\n"
