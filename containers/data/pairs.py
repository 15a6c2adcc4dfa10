"""Reads the pairs that filter_dataset wrote, and the demonstrations of filter_demonstrations."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from containers.contracts.names import (
    POLICY_EVAL_PROMPTS_FILE,
    POLICY_FROZEN_PROMPTS_FILE,
    POLICY_TRAIN_PROMPTS_FILE,
    TRAIN_DEMONSTRATIONS_FILE,
    TRAIN_PAIRS_FILE,
    TUNE_PAIRS_FILE,
    VALIDATION_DEMONSTRATIONS_FILE,
)
from containers.harness.errors import BadDataError, MissingPrerequisiteError

Row = dict[str, Any]
_PAIR_COLUMNS = ("prompt", "chosen", "rejected", "margin", "domain", "language", "pair_id")


@dataclass(frozen=True)
class RowFiles:
    """The rows of a filter that a training reads.

    Attributes:
        role: name of the stage's input.
        what: what the rows are, for messages.
        train: file of the training rows in the input.
        validation: file of the rows that choose a checkpoint.
        columns: a row has them.
    """

    role: str
    what: str
    train: str
    validation: str
    columns: frozenset[str]

    def read(self, artifact: Path, file: str) -> list[Row]:
        """The rows of one of the files; each column of turns is a list of messages.

        Raises:
            MissingPrerequisiteError: the file is missing, damaged, or lacks a column.
            BadDataError: it has no row.
        """
        path = artifact / file
        try:
            table = pq.read_table(path)
        except Exception as error:
            raise MissingPrerequisiteError(f"{path} is no readable parquet file of {self.what}: {error}") from error
        lacking = sorted(self.columns - set(table.column_names))
        if lacking:
            raise MissingPrerequisiteError(f"{path} lacks the columns {lacking}; it has {table.column_names}.")
        rows: list[Row] = table.to_pylist()
        if not rows:
            raise BadDataError(f"{path} has no row. See the funnel of its filter: every row was dropped there.")
        return rows


PAIR_FILES = RowFiles("pairs", "pairs", TRAIN_PAIRS_FILE, TUNE_PAIRS_FILE, frozenset(_PAIR_COLUMNS))
DEMONSTRATION_FILES = RowFiles(
    "demonstrations",
    "demonstrations",
    TRAIN_DEMONSTRATIONS_FILE,
    VALIDATION_DEMONSTRATIONS_FILE,
    frozenset(("prompt", "completion", "demonstration_id")),
)


def read_pair_rows(artifact: Path, file: str) -> list[Row]:
    """The rows of `train.parquet` or another file of pairs; errors as `RowFiles.read`."""
    return PAIR_FILES.read(artifact, file)


def read_policy_prompts(artifact: Path) -> list[list[dict[str, str]]]:
    """Return the prompts that train, judge and compare policies; empty if there are no files.

    Raises:
        MissingPrerequisiteError: a file is damaged.
    """
    found: list[list[dict[str, str]]] = []
    for file in (POLICY_TRAIN_PROMPTS_FILE, POLICY_EVAL_PROMPTS_FILE, POLICY_FROZEN_PROMPTS_FILE):
        path = artifact / file
        if path.is_file():
            try:
                found += pq.read_table(path, columns=["prompt"])["prompt"].to_pylist()
            except Exception as error:
                raise MissingPrerequisiteError(f"{path} is no readable parquet file of prompts: {error}") from error
    return found


def same_pairs(artifact: Path, one: str, other: str) -> int:
    """Number of pairs that two files of the artifact have in common; 0 if one is missing.

    Raises:
        MissingPrerequisiteError: a file is damaged.
    """
    ids: list[set[str]] = []
    for path in (artifact / one, artifact / other):
        if not path.is_file():
            return 0
        try:
            ids.append(set(pq.read_table(path, columns=["pair_id"])["pair_id"].to_pylist()))
        except Exception as error:
            raise MissingPrerequisiteError(f"{path} is no readable parquet file of pairs: {error}") from error
    return len(ids[0] & ids[1])


def both_sides(row: Mapping[str, Any]) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The two conversations of a pair: prompt plus chosen, prompt plus rejected."""
    return row["prompt"] + row["chosen"], row["prompt"] + row["rejected"]
