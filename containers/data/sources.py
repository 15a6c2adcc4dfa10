"""Reads the inputs of filter_dataset: every row of every file, each with its place, malformed ones by reason."""

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from containers.contracts.configs.parts.row_filters import AS_FOUND, RowReading
from containers.contracts.spec import StageInput
from containers.data.formats.custom_reader import read_lines_with
from containers.data.formats.files import Line, data_files, read_lines, require_rows_among
from containers.data.funnel import UNKNOWN, DroppedRow, FunnelCounter, Split, counted, shortened
from containers.data.language_names import normalised_language
from containers.data.reader import RowRead, rows_of_lines
from containers.data.rows import PreferenceRow, Row
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
class Placed:
    """A well-formed row, the split of its source, and its place in the file."""

    source: str
    split: Split
    file: str
    line: int
    row: Row

    def dropped(self, seen: str) -> DroppedRow:
        """Return the row as the funnel shows a dropped one."""
        row = self.row
        return DroppedRow(
            split=self.split,
            file=self.file,
            line=self.line,
            seen=seen,
            source=self.source,
            domain=row.domain,
            language=row.language,
            prompt=row.prompt[-1]["content"],
        )


@dataclass(slots=True)
class PlacedRow(Placed):
    """A preference row with its place."""

    row: PreferenceRow

    @property
    def strength(self) -> str:
        """The strength of the preference as a whole number; 0 is a tie."""
        return _rounded(self.row.pair.margin)

    def dropped(self, seen: str) -> DroppedRow:
        """Return the row as the funnel shows a dropped one."""
        pair = self.row.pair
        found = super(PlacedRow, self).dropped(seen)
        return replace(found, strength=self.strength, chosen=pair.chosen, rejected=pair.rejected)


PlacedT = TypeVar("PlacedT", bound=Placed)


@dataclass
class Source(Generic[PlacedT]):
    """The rows of one input.

    Attributes:
        name: the source in a mixture; `dataset` where there is one source only.
        origin: where it comes from, as messages show it.
    """

    name: str
    origin: str
    split: Split
    rows_read: int = 0
    rows: list[PlacedT] = field(default_factory=list)
    malformed: dict[str, list[DroppedRow]] = field(default_factory=lambda: defaultdict(list))

    @property
    def num_malformed(self) -> int:
        """Number of malformed rows, without blank lines."""
        return sum(len(rows) for reason, rows in self.malformed.items() if reason != _HARMLESS)


PairSource: TypeAlias = Source[PlacedRow]


def read_source(
    item: StageInput,
    *,
    split: Split,
    name: str = SINGLE_SOURCE,
    reader: Path | None = None,
    reading: RowReading = AS_FOUND,
) -> PairSource:
    """Read every row of an input's files.

    Places name the input's origin, not its mount, so they are the same in every runtime.

    Args:
        reader: the user's own reader (`formats.custom_reader`), if the files have no known schema.
        reading: names of columns, pairs of rankings, and slices.

    Raises:
        BadDataError: no data file, a damaged one, or one in an unknown schema; very many rows and nearly all malformed;
            or the reader failed.
    """
    source = PairSource(name=name, origin=item.origin or Path(item.path).name, split=split)
    for file, lines in lines_by_file(item, split=split, reader=reader, reading=reading):
        for read in rows_of_lines(lines, file=file, reading=reading):
            source.rows_read += 1
            if read.row is None:
                require_rows_among(source.rows_read, num_rows=len(source.rows), name=source.origin)
                source.malformed[read.reason].append(_malformed(read, source=source, file=file))
            else:
                source.rows.append(PlacedRow(source.name, source.split, file, read.line, read.row))
    return source


def lines_by_file(
    item: StageInput, *, split: Split, reader: Path | None, reading: RowReading, section: str = "dataset"
) -> Iterator[tuple[str, Iterator[Line]]]:
    """Yield the lines of each file of an input, with the file's name for messages.

    Args:
        reader: a user's file with `read_rows`; it reads the input in the stage's place.
        section: of the run that names the reader, for messages.

    Raises:
        BadDataError: there is no data file, one is damaged, no row is in the slice, or the reader failed.
    """
    root, origin = Path(item.path), item.origin or Path(item.path).name
    name = Path(origin).name
    if reader is not None:
        yield name, read_lines_with(reader, root, name=origin, key=f"{section}.reader")
        return
    rows = reading.train_rows if split == "train" else reading.validation_rows
    if rows:
        files = sliced_files(data_files(root), rows, name=origin)
    else:
        files = ((path, read_lines(path, fast=not reading.columns)) for path in data_files(root))
    for path, lines in files:
        yield path.relative_to(root).as_posix() if root.is_dir() else name, lines


def check_malformed(source: Source[Any], *, max_fraction: float, stage: str = "filter_dataset") -> None:
    """Refuse a source in which more rows than `max_fraction` are malformed; `stage` has the key of it.

    Raises:
        BadDataError: with the count of each reason, and the first lines.
    """
    if source.num_malformed <= max_fraction * source.rows_read:
        return
    lines = [f"  {reason}: {len(rows):,} ({_first_lines(rows)})" for reason, rows in malformed_by_reason([source])]
    raise BadDataError(
        f"{source.origin}: {source.num_malformed:,} of {source.rows_read:,} rows "
        f"({source.num_malformed / source.rows_read:.1%}) are malformed; {stage}.max_malformed_fraction allows "
        f"{max_fraction:.1%}.\n"
        + "\n".join(lines)
        + "\nRepair the file, or allow a larger fraction: the good rows are "
        "then used and the others counted."
    )


def malformed_by_reason(sources: Iterable[Source[Any]]) -> list[tuple[str, list[DroppedRow]]]:
    """Malformed rows of all sources together, the most frequent reason first."""
    together: dict[str, list[DroppedRow]] = defaultdict(list)
    for source in sources:
        for reason, rows in source.malformed.items():
            together[reason].extend(rows)
    return sorted(together.items(), key=lambda item: (-len(item[1]), item[0]))


def counter_of(sources: Sequence[Source[Any]]) -> FunnelCounter:
    """A counter of the rows read, in which the malformed ones are dropped already."""
    rows_read: dict[Split, int] = {}
    for source in sources:
        rows_read[source.split] = rows_read.get(source.split, 0) + source.rows_read
    counter = FunnelCounter(rows_read)
    for reason, malformed in malformed_by_reason(sources):
        counter.step(reason, malformed)
    return counter


def rows_read_by_group(sources: Iterable[Source[Any]]) -> dict[str, tuple[tuple[str, int], ...]]:
    """Rows read by domain, language (detected, where the column says nothing) and source, as a funnel has them."""
    groups: dict[str, list[str]] = {"domain": [], "language": [], "source": []}
    for source in sources:
        malformed = [row for rows in source.malformed.values() for row in rows]
        groups["domain"] += [row.domain for row in malformed] + [item.row.domain for item in source.rows]
        groups["language"] += [row.language for row in malformed] + [item.row.language for item in source.rows]
        groups["source"] += [source.name] * (len(malformed) + len(source.rows))
    return {f"read_by_{kind}": counted([name or UNKNOWN for name in names]) for kind, names in groups.items()}


def languages_seen(rows: Iterable[Placed]) -> str:
    """The values of the language column as text, most frequent first."""
    counts = Counter(item.row.language for item in rows).most_common(8)
    return ", ".join(f"{shortened(name, 24)} {count:,}" for name, count in counts)


def _first_lines(rows: list[DroppedRow]) -> str:
    shown = ", ".join(
        f"{row.file}:{row.line}" + (f" {shortened(row.seen, 50)}" if row.seen else "") for row in rows[:_LINES_SHOWN]
    )
    return f"{shown}, …" if len(rows) > _LINES_SHOWN else shown


def _malformed(read: RowRead, *, source: PairSource, file: str) -> DroppedRow:
    return DroppedRow(
        split=source.split,
        source=source.name,
        file=file,
        line=read.line,
        seen=read.seen or "(nothing)",
        domain=read.domain.strip().lower(),
        language=normalised_language(read.language),
    )
