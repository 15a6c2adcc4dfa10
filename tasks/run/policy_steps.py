"""The completions that a policy's training keeps of its steps, while it trains and afterwards."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from containers.contracts.names import CHECKPOINTS_FOLDER, COMPLETION_LOG_FILE, COMPLETIONS_FILE, StageName
from tasks.config.run import RunConfig

Row = dict[str, Any]


@dataclass(frozen=True)
class KeptSteps:
    """The kept completions of one training, in order.

    Attributes:
        source: the file that has them.
        rows: columns as in `completions.parquet`.
    """

    source: Path
    rows: tuple[Row, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of which completions are kept, in order."""
        return tuple(dict.fromkeys(row["step"] for row in self.rows))

    def nearest(self, step: int) -> int:
        """Return the kept step that is nearest to `step`; of two, the earlier one."""
        return min(self.steps, key=lambda kept: (abs(kept - step), kept))

    def prompts_of(self, step: int) -> tuple[tuple[Row, ...], ...]:
        """Return the step's completions, those of one prompt together, best reward first."""
        by_prompt: dict[str, list[Row]] = {}
        for row in self.rows:
            if row["step"] == step:
                by_prompt.setdefault(json.dumps(row["prompt"], sort_keys=True), []).append(row)
        return tuple(tuple(sorted(rows, key=_by_reward)) for rows in by_prompt.values())


def read_policy_steps(config: RunConfig) -> KeptSteps | None:
    """Return what the run's training of the policy has kept, the newer of a training that goes on and a finished one.

    None if nothing is kept yet.
    """
    places = [place for place in (_finished(config), *_under_way(config)) if place.is_file()]
    for place in sorted(places, key=lambda path: path.stat().st_mtime, reverse=True):
        if rows := tuple(_read(place)):
            return KeptSteps(place, rows)
    return None


def _finished(config: RunConfig) -> Path:
    return config.output_dir / "artifacts" / StageName.TRAIN_POLICY / COMPLETIONS_FILE


def _under_way(config: RunConfig) -> Iterator[Path]:
    """Yield the logs of trainings on which this run worked last; the store may belong to several runs."""
    work = config.store_dir / "work" / StageName.TRAIN_POLICY
    for holder in work.glob("*.holder.json"):
        try:
            name = str(json.loads(holder.read_text(encoding="utf-8"))["holder"]).partition(" ")[0]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if name == config.run.name:
            yield work / holder.name.removesuffix(".holder.json") / CHECKPOINTS_FOLDER / COMPLETION_LOG_FILE


def _read(place: Path) -> list[Row]:
    """Return the readable rows of a file; the last line of a training that goes on may be unfinished."""
    if place.suffix == ".parquet":
        try:
            rows: list[Row] = parquet.read_table(place).to_pylist()
        except (OSError, pa.ArrowException):
            return []
        return rows
    found = []
    for line in place.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [row for row in found if isinstance(row, dict) and isinstance(row.get("step"), int)]


def _by_reward(row: Row) -> float:
    reward = row.get("reward")
    return -reward if isinstance(reward, int | float) else float("inf")
