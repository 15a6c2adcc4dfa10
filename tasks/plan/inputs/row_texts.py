"""Texts of some pairs of a data file, evenly spread over it, for the lengths in a plan. Nothing is judged or cleaned.

The stage reads the same columns (`containers.data.formats.columns`), strictly. Here a row that cannot be read is left
out, and so are NeMo-Aligner's comparisons, whose pairs are two lines.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from containers.contracts.file_limits import MAX_LINE_BYTES
from containers.data.formats.columns import ARENA, HELPSTEER3, SCHEMAS, TRL, ULTRAFEEDBACK
from containers.data.formats.parquet_rows import UnreadableParquetError, row_batches

# A sample of so many places percentiles to a percent, and takes less than a second to read.
SAMPLE_ROWS = 1000
_MAX_READ_BYTES = 256 * 1024**2
# What reading a line takes at least, counted as bytes: a file of blank lines has one byte a line.
_MIN_ROW_BYTES = 100
# Text in gzip and parquet is about so many times as long.
EXPANSION = 4
_DAMAGE = (OSError, EOFError, zlib.error, UnreadableParquetError)

_Value = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PairTexts:
    """The texts of a pair; the turns of the prompt are joined, and `num_turns` says how many they were."""

    prompt: str
    chosen: str
    rejected: str
    num_turns: int

    @property
    def num_characters(self) -> int:
        """Of the prompt with the longer answer."""
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))


def sample_pairs(files: Sequence[Path], *, num_rows: int | None) -> Iterator[PairTexts]:
    """About SAMPLE_ROWS of the pairs of jsonl, jsonl.gz and parquet files; all of them where there are no more.

    Only the first 256 MiB are read, so that a plan takes seconds whatever the data are.

    Args:
        num_rows: of all files together; None where nobody counted: the first ones are taken.
    """
    every = 1 if num_rows is None else max(1, int(num_rows * _share_read(files)) // SAMPLE_ROWS)
    taken = 0
    for number, value in enumerate(_values(files)):
        if number % every == every // 2 and (found := pair_texts(value())) is not None:
            yield found
            taken += 1
            if taken >= 2 * SAMPLE_ROWS:
                return


def are_all_taken(files: Sequence[Path], *, num_rows: int | None) -> bool:
    """Whether `sample_pairs` leaves none out."""
    return num_rows is not None and num_rows < 2 * SAMPLE_ROWS and _share_read(files) == 1


def pair_texts(value: _Value | None) -> PairTexts | None:
    """The texts of one row; None where it has no pair that can be read here."""
    if value is None:
        return None
    schema = next((schema for schema in SCHEMAS if schema.fits(value)), None)
    try:
        if schema is HELPSTEER3:
            return _texts(value["context"], value["response1"], value["response2"])
        if schema is ARENA:
            return _texts(value["prompt"], value["response_a"], value["response_b"])
        if schema is ULTRAFEEDBACK:
            return _best_and_worst(value)
        return _chosen_and_rejected(value) if schema is TRL else None
    except (TypeError, ValueError, LookupError, AttributeError):
        return None


def _texts(prompt: object, chosen: object, rejected: object) -> PairTexts:
    text, num_turns = _text(prompt)
    return PairTexts(text, _text(chosen)[0], _text(rejected)[0], num_turns)


def _text(value: Any) -> tuple[str, int]:
    """Text of a turn or a conversation, and of how many turns it is.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(value, str):
        return value, 1
    contents = [turn["content"] for turn in value]
    return "\n".join(contents), len(contents)


def _chosen_and_rejected(value: _Value) -> PairTexts:
    prompt, chosen, rejected = value.get("prompt"), value["chosen"], value["rejected"]
    if prompt is not None:
        if not isinstance(prompt, str) and not isinstance(chosen, str) and len(chosen) > len(prompt):
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        return _texts(prompt, chosen, rejected)
    # The last turn of a conversation, or character of a text, is no part of the prompt.
    longest = min(len(chosen), len(rejected)) - 1
    length = next((place for place in range(longest) if chosen[place] != rejected[place]), longest)
    return _texts(chosen[:length], chosen[length:], rejected[length:])


def _best_and_worst(value: _Value) -> PairTexts:
    answers = sorted(value["completions"], key=lambda item: float(item["overall_score"]))
    return _texts(value["instruction"], answers[-1]["response"], answers[0]["response"])


class _Reader:
    """Gives a row when it is asked for, so that rows between those of a sample are never parsed."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def __call__(self) -> _Value | None:
        try:
            value = json.loads(self._raw)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


class _Cell:
    """The same for a row of a parquet batch."""

    def __init__(self, batch: Any, row: int) -> None:
        self._batch, self._row = batch, row

    def __call__(self) -> _Value | None:
        row: _Value = self._batch.slice(self._row, 1).to_pylist()[0]
        return row


def _share_read(files: Sequence[Path]) -> float:
    """About how much of the files the limit lets be read."""
    sizes = [file.stat().st_size * (1 if file.suffix == ".jsonl" else EXPANSION) for file in files if file.is_file()]
    return min(1.0, _MAX_READ_BYTES / max(1, sum(sizes)))


def _values(files: Iterable[Path]) -> Iterator[_Reader | _Cell]:
    left = _MAX_READ_BYTES
    for file in files:
        try:
            for size, value in _parquet(file) if file.suffix == ".parquet" else _lines(file):
                left -= max(size, _MIN_ROW_BYTES)
                yield value
                if left <= 0:
                    return
        except _DAMAGE:
            return


def _lines(file: Path) -> Iterator[tuple[int, _Reader]]:
    with gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb") as opened:
        while raw := opened.readline(MAX_LINE_BYTES):
            yield len(raw), _Reader(raw)


def _parquet(file: Path) -> Iterator[tuple[int, _Cell]]:
    if find_spec("pyarrow") is None:
        return
    for batch in row_batches(file):
        if batch.is_too_long:
            continue
        for row in range(batch.rows.num_rows):
            yield batch.num_bytes // batch.rows.num_rows, _Cell(batch.rows, row)
