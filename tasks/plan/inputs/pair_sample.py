"""A sample of the pairs of data files, evenly spread over them, for the lengths in a plan.

Pairs are read as the stage reads them. Unusable rows and unreadable files are left out: the system check says what is
wrong with them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType

from containers.contracts.configs.filter_demonstrations import FilterDemonstrationsConfig
from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.configs.parts.row_filters import AS_FOUND, RowReading
from containers.data.demonstrations.reading import DEMONSTRATIONS
from containers.data.formats.errors import UnreadableFileError
from containers.data.formats.files import Line, ReadLimit, some_lines
from containers.data.prompts.reading import PROMPTS
from containers.data.prompts.wording import as_asked, as_told
from containers.data.reader import rows_of_lines
from containers.data.rows import Pair
from containers.harness.errors import BadDataError

# A sample of this size gives percentiles to a percent, and takes less than a second to read.
SAMPLE_ROWS = 1000
_MAX_READ_BYTES = 256 * 1024**2
# Text in gzip and parquet is about this many times as long as its file.
_EXPANSION = 4


@dataclass(frozen=True, slots=True)
class PairTexts:
    """The texts of a pair; the turns of the prompt are joined; `num_turns` is their number."""

    prompt: str
    chosen: str
    rejected: str
    num_turns: int

    @property
    def num_characters(self) -> int:
        """Characters of the prompt with the longer completion."""
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))


def sample_pairs(
    files: Sequence[Path], *, num_rows: int | None, readings: Mapping[Path, RowReading] = MappingProxyType({})
) -> Iterator[PairTexts]:
    """About SAMPLE_ROWS of the pairs of jsonl, jsonl.gz and parquet files; all of them where there are no more.

    Only the first 256 MiB are read, and lines between those of the sample are not parsed, so that a plan takes seconds
    whatever the data are.

    Args:
        num_rows: of all files together; None: not counted, so the first ones are taken.
        readings: how to read a file whose columns have other names.
    """
    return islice(_sampled(files, readings, num_rows=num_rows, texts_of=_pairs), 2 * SAMPLE_ROWS)


def sample_prompts(
    files: Sequence[Path],
    config: FilterPromptsConfig,
    *,
    num_rows: int | None,
    readings: Mapping[Path, RowReading] = MappingProxyType({}),
) -> Iterator[PairTexts]:
    """As `sample_pairs`, for a prompt set: prompts as the policy gets them, without completions."""

    def texts_of(lines: Iterator[Line], file: str, reading: RowReading) -> Iterator[PairTexts]:
        for row in PROMPTS.rows(lines, file=file, reading=reading):
            asked = as_asked(row.prompt, config)
            yield PairTexts("\n".join(turn["content"] for turn in asked), "", "", len(asked))

    return islice(_sampled(files, readings, num_rows=num_rows, texts_of=texts_of), 2 * SAMPLE_ROWS)


def sample_demonstrations(
    files: Sequence[Path],
    config: FilterDemonstrationsConfig,
    *,
    num_rows: int | None,
    readings: Mapping[Path, RowReading] = MappingProxyType({}),
) -> Iterator[PairTexts]:
    """As `sample_pairs`, for demonstrations: all answers of a conversation are the chosen one, the rest the prompt."""

    def texts_of(lines: Iterator[Line], file: str, reading: RowReading) -> Iterator[PairTexts]:
        for row in DEMONSTRATIONS.rows(lines, file=file, reading=reading):
            turns = as_told(row.prompt, config)
            before = [turn["content"] for turn in turns if turn["role"] != "assistant"]
            answers = [turn["content"] for turn in turns if turn["role"] == "assistant"]
            yield PairTexts("\n".join(before), "\n".join([*answers, row.answer]), "", len(turns))

    return islice(_sampled(files, readings, num_rows=num_rows, texts_of=texts_of), 2 * SAMPLE_ROWS)


def _sampled(
    files: Sequence[Path],
    readings: Mapping[Path, RowReading],
    *,
    num_rows: int | None,
    texts_of: Callable[[Iterator[Line], str, RowReading], Iterator[PairTexts]],
) -> Iterator[PairTexts]:
    every = 1 if num_rows is None else max(1, int(num_rows * _share_read(files)) // SAMPLE_ROWS)
    limit = ReadLimit(_MAX_READ_BYTES)
    wanted = cycle([place == every // 2 for place in range(every)])
    for file in files:
        if limit.bytes_left <= 0:
            return
        try:
            texts = texts_of(_lines(file, limit=limit, wanted=wanted), file.name, readings.get(file, AS_FOUND))
            yield from texts
        except (BadDataError, OSError):
            return


def _pairs(lines: Iterator[Line], file: str, reading: RowReading) -> Iterator[PairTexts]:
    for read in rows_of_lines(lines, file=file, reading=reading):
        if read.row is not None:
            yield _texts(read.row.pair)


def _lines(file: Path, *, limit: ReadLimit, wanted: Iterator[bool]) -> Iterator[Line]:
    """Lines up to the first damage of the file."""
    try:
        yield from some_lines(file, limit=limit, wanted=wanted)
    except UnreadableFileError:
        return


def are_all_taken(files: Sequence[Path], *, num_rows: int | None) -> bool:
    """Whether `sample_pairs` leaves none out."""
    return num_rows is not None and num_rows < 2 * SAMPLE_ROWS and _share_read(files) == 1


def _share_read(files: Sequence[Path]) -> float:
    """Approximate share of the files that is within the limit."""
    return min(1.0, _MAX_READ_BYTES / max(1, sum(expanded_bytes(file) for file in files if file.is_file())))


def expanded_bytes(file: Path) -> int:
    """Approximate bytes of the text in a data file."""
    return file.stat().st_size * (1 if file.suffix == ".jsonl" else _EXPANSION)


def _texts(pair: Pair) -> PairTexts:
    prompt = "\n".join(turn["content"] for turn in pair.prompt)
    return PairTexts(prompt, pair.chosen, pair.rejected, len(pair.prompt))
