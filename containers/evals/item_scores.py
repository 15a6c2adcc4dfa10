"""The scores of a suite's items on disk; the suite's score can be computed from them again, for any of the items."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from containers.evals.suites.base import Comparison, ScoredItem, SuiteItem

_COMPARISONS = pa.list_(pa.struct([("better", pa.int64()), ("worse", pa.int64()), ("cell", pa.string())]))


@dataclass(frozen=True)
class _StoredItem(SuiteItem):
    """An item without its texts."""

    stored_prompt_id: str = ""

    @property
    def prompt_id(self) -> str:
        """As it was computed from the prompt."""
        return self.stored_prompt_id


def write_item_scores(items: Sequence[ScoredItem], path: Path) -> None:
    """Write a row for each item with the scores of all its responses, also where none of them is better."""
    table = {
        "item_id": [scored.item.item_id for scored in items],
        "prompt_id": [scored.item.prompt_id for scored in items],
        "subset": [scored.item.subset for scored in items],
        "line": pa.array([scored.item.line for scored in items], pa.int64()),
        "scores": pa.array([list(scored.scores) for scored in items], pa.list_(pa.float64())),
        "comparisons": pa.array(
            [[_fields(comparison) for comparison in scored.item.comparisons] for scored in items], _COMPARISONS
        ),
    }
    pq.write_table(pa.table(table), path)


def _fields(comparison: Comparison) -> dict[str, int | str]:
    return {"better": comparison.better, "worse": comparison.worse, "cell": comparison.cell}


def read_item_scores(path: Path) -> dict[str, ScoredItem]:
    """Read the items by their ids, with their scores and without their texts.

    Raises:
        OSError: the file cannot be read.
        pyarrow.ArrowException: it is damaged, or lacks a column.
    """
    columns = ["item_id", "prompt_id", "subset", "line", "scores", "comparisons"]
    return {row["item_id"]: _scored(row) for row in pq.read_table(path, columns=columns).to_pylist()}


def _scored(row: dict[str, Any]) -> ScoredItem:
    item = _StoredItem(
        item_id=row["item_id"],
        prompt=(),
        responses=("",) * len(row["scores"]),
        subset=row["subset"],
        comparisons=tuple(Comparison(**comparison) for comparison in row["comparisons"]),
        line=row["line"],
        stored_prompt_id=row["prompt_id"],
    )
    return ScoredItem(item, tuple(row["scores"]))
