"""Writes what filter_dataset keeps: parquet tables that `datasets` reads as TRL's conversational preference rows."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from containers.stages.pair_schemas import PreferenceRow, Turn

_TURNS = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_PAIRS = pa.schema(
    [
        ("prompt", _TURNS),
        ("chosen", _TURNS),
        ("rejected", _TURNS),
        ("margin", pa.float32()),
        ("domain", pa.string()),
        ("language", pa.string()),
        ("pair_id", pa.string()),
    ]
)
_PROMPTS = pa.schema([("prompt", _TURNS), ("domain", pa.string()), ("prompt_id", pa.string())])


def write_pairs(path: Path, rows: Iterable[PreferenceRow]) -> None:
    """Write one line per pair, in order; the same rows give the same bytes."""
    _write(path, [_pair_record(row) for row in rows], _PAIRS)


def write_prompts(path: Path, rows: Iterable[PreferenceRow]) -> int:
    """Write each prompt once, where it first appears.

    Returns:
        The number of prompts.
    """
    first: dict[str, PreferenceRow] = {}
    for row in rows:
        first.setdefault(row.prompt_id, row)
    records = [
        {"prompt": list(row.pair.prompt), "domain": row.pair.domain, "prompt_id": prompt_id}
        for prompt_id, row in first.items()
    ]
    _write(path, records, _PROMPTS)
    return len(records)


def _pair_record(row: PreferenceRow) -> dict[str, Any]:
    pair = row.pair
    return {
        "prompt": list(pair.prompt),
        "chosen": [_assistant(pair.chosen)],
        "rejected": [_assistant(pair.rejected)],
        "margin": pair.margin,
        "domain": pair.domain,
        "language": pair.language,
        "pair_id": pair.pair_id,
    }


def _assistant(text: str) -> Turn:
    return {"role": "assistant", "content": text}


def _write(path: Path, records: Sequence[dict[str, Any]], schema: pa.Schema) -> None:
    pq.write_table(pa.Table.from_pylist(list(records), schema=schema), path, compression="zstd")
