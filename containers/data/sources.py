"""Reads the inputs of filter_dataset: every row of every file, each with its place, malformed ones by reason."""

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from containers.contracts.configs.row_reading import AS_FOUND, RowReading
from containers.contracts.spec import StageInput
from containers.data.formats.custom_reader import read_lines_with
from containers.data.formats.files import data_files, read_lines, require_rows_among
from containers.data.funnel import DroppedRow, Split, shortened
from containers.data.language_names import normalised_language
from containers.data.reader import RowRead, rows_of_lines
from containers.data.rows import PreferenceRow
from containers.data.slices import sliced_files
from containers.harness.errors import BadDataError

# The name of the source where there is only one.
SINGLE_SOURCE = "dataset"

# An empty line loses nothing, so it is counted but does not make a file suspect.
_HARMLESS = "blank_line"
_LINES_SHOWN = 3


@functools.lru_cache(64)
def _rounded(margin: float) -> str:
    return str(round(margin))


@dataclass(slots=True)
class PlacedRow:
    """A well-formed row, the split of its source, and its place in the file."""

    source: str
    split: Split
    file: str
    line: int
    row: PreferenceRow

    @property
    def strength(self) -> str:
        """The strength of the preference as a whole number; 0 is a tie."""
        return _rounded(self.row.pair.margin)

    def dropped(self, seen: str) -> DroppedRow:
        """Return the row as the funnel shows a dropped one."""
        pair = self.row.pair
        return DroppedRow(
            split=self.split,
            file=self.file,
            line=self.line,
            seen=seen,
            source=self.source,
            domain=pair.domain,
            language=pair.language,
            strength=self.strength,
            prompt=pair.prompt[-1]["content"],
            chosen=pair.chosen,
            rejected=pair.rejected,
        )


@dataclass
class Source:
    """The rows of one input.

    Attributes:
        name: the source in a mixture; `dataset` where there is one source only.
        origin: where it comes from, as messages show it.
    """

    name: str
    origin: str
    split: Split
    rows_read: int = 0
    rows: list[PlacedRow] = field(default_factory=list)
    malformed: dict[str, list[DroppedRow]] = field(default_factory=lambda: defaultdict(list))

    @property
    def num_malformed(self) -> int:
        """Number of malformed rows, without blank lines."""
        return sum(len(rows) for reason, rows in self.malformed.items() if reason != _HARMLESS)


def read_source(
    item: StageInput,
    *,
    split: Split,
    name: str = SINGLE_SOURCE,
    reader: Path | None = None,
    reading: RowReading = AS_FOUND,
) -> Source:
    """Read every row of an input's files.

    Places name the input's origin, not its mount, so they are the same in every runtime.

    Args:
        reader: the user's own reader (`formats.custom_reader`), if the files have no known schema.
        reading: names of columns, pairs of rankings, and slices.

    Raises:
        BadDataError: no data file, a damaged one, or one in an unknown schema; very many rows and nearly all malformed;
            or the reader failed.
    """
    source = Source(name=name, origin=item.origin or Path(item.path).name, split=split)
    for file, rows in _rows_by_file(source, Path(item.path), reader, reading):
        for read in rows:
            source.rows_read += 1
            if read.row is None:
                require_rows_among(source.rows_read, num_rows=len(source.rows), name=source.origin)
                source.malformed[read.reason].append(_malformed(read, source=source, file=file))
            else:
                source.rows.append(PlacedRow(source.name, source.split, file, read.line, read.row))
    return source


def _rows_by_file(
    source: Source, root: Path, reader: Path | None, reading: RowReading
) -> Iterator[tuple[str, Iterator[RowRead]]]:
    """Yield the rows of each file, with the file's name for messages."""
    name = Path(source.origin).name
    if reader is not None:
        lines = read_lines_with(reader, root, name=source.origin)
        yield name, rows_of_lines(lines, file=name, reading=reading)
        return
    rows = reading.train_rows if source.split == "train" else reading.validation_rows
    if rows:
        files = sliced_files(data_files(root), rows, name=source.origin)
    else:
        files = ((path, read_lines(path, fast=not reading.columns)) for path in data_files(root))
    for path, lines in files:
        file = path.relative_to(root).as_posix() if root.is_dir() else name
        yield file, rows_of_lines(lines, file=path.name, reading=reading)


def check_malformed(source: Source, *, max_fraction: float) -> None:
    """Refuse a source in which more rows than `max_fraction` are malformed.

    Raises:
        BadDataError: with the count of each reason, and the first lines.
    """
    if source.num_malformed <= max_fraction * source.rows_read:
        return
    lines = [f"  {reason}: {len(rows):,} ({_first_lines(rows)})" for reason, rows in malformed_by_reason([source])]
    raise BadDataError(
        f"{source.origin}: {source.num_malformed:,} of {source.rows_read:,} rows "
        f"({source.num_malformed / source.rows_read:.1%}) are malformed; filter_dataset.max_malformed_fraction allows "
        f"{max_fraction:.1%}.\n"
        + "\n".join(lines)
        + "\nRepair the file, or allow a larger fraction: the good rows are "
        "then used and the others counted."
    )


def malformed_by_reason(sources: Iterable[Source]) -> list[tuple[str, list[DroppedRow]]]:
    """Malformed rows of all sources together, the most frequent reason first."""
    together: dict[str, list[DroppedRow]] = defaultdict(list)
    for source in sources:
        for reason, rows in source.malformed.items():
            together[reason].extend(rows)
    return sorted(together.items(), key=lambda item: (-len(item[1]), item[0]))


def languages_seen(rows: Iterable[PlacedRow]) -> str:
    """The values of the language column as text, most frequent first."""
    counts = Counter(item.row.pair.language for item in rows).most_common(8)
    return ", ".join(f"{shortened(name, 24)} {count:,}" for name, count in counts)


def _first_lines(rows: list[DroppedRow]) -> str:
    shown = ", ".join(
        f"{row.file}:{row.line}" + (f" {shortened(row.seen, 50)}" if row.seen else "") for row in rows[:_LINES_SHOWN]
    )
    return f"{shown}, …" if len(rows) > _LINES_SHOWN else shown


def _malformed(read: RowRead, *, source: Source, file: str) -> DroppedRow:
    return DroppedRow(
        split=source.split,
        source=source.name,
        file=file,
        line=read.line,
        seen=read.seen or "(nothing)",
        domain=read.domain.strip().lower(),
        language=normalised_language(read.language),
    )
