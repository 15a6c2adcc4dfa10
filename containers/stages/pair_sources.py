"""Reads the inputs of filter_dataset: every row of every file, each with its place, malformed ones by reason."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from containers.contracts.spec import StageInput
from containers.stages.errors import BadDataError
from containers.stages.funnel import DroppedRow, Split, shortened
from containers.stages.language_names import normalised_language
from containers.stages.pair_files import data_files
from containers.stages.pair_schemas import PreferenceRow
from containers.stages.preference_rows import RowRead, read_rows

# An empty line loses nothing, so it is counted but does not make a file suspect.
_HARMLESS = "blank_line"
_LINES_SHOWN = 3


@dataclass(slots=True)
class PlacedRow:
    """A well-formed row, the split that its source stands for, and where it lies."""

    split: Split
    file: str
    line: int
    row: PreferenceRow

    def dropped(self, seen: str) -> DroppedRow:
        """The row as the funnel shows it once it is dropped."""
        pair = self.row.pair
        return DroppedRow(
            split=self.split,
            file=self.file,
            line=self.line,
            seen=seen,
            domain=pair.domain,
            language=pair.language,
            prompt=pair.prompt[-1]["content"],
            chosen=pair.chosen,
            rejected=pair.rejected,
        )


@dataclass
class Source:
    """What one input held."""

    name: str
    split: Split
    rows_read: int = 0
    rows: list[PlacedRow] = field(default_factory=list)
    malformed: dict[str, list[DroppedRow]] = field(default_factory=lambda: defaultdict(list))

    @property
    def num_malformed(self) -> int:
        """Malformed rows, blank lines left out."""
        return sum(len(rows) for reason, rows in self.malformed.items() if reason != _HARMLESS)


def read_source(item: StageInput, *, split: Split) -> Source:
    """Every row of an input's files.

    Places are named after the input's origin, not after where it is mounted: so they are the same in every runtime.

    Raises:
        BadDataError: no data file, a damaged one, or one in an unknown schema.
    """
    root = Path(item.path)
    source = Source(name=item.origin or root.name, split=split)
    for path in data_files(root):
        label = path.relative_to(root).as_posix() if root.is_dir() else Path(source.name).name
        for read in read_rows(path):
            source.rows_read += 1
            if read.row is None:
                source.malformed[read.reason].append(_malformed(read, split=split, file=label))
            else:
                source.rows.append(PlacedRow(split, label, read.line, read.row))
    return source


def check_malformed(source: Source, *, max_fraction: float) -> None:
    """Refuse a source in which more rows than `max_fraction` are malformed.

    Raises:
        BadDataError: with the count of each reason, and the first lines.
    """
    if source.num_malformed <= max_fraction * source.rows_read:
        return
    by_reason = sorted(source.malformed.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = [f"  {reason}: {len(rows):,} ({_first_lines(rows)})" for reason, rows in by_reason]
    raise BadDataError(
        f"{source.name}: {source.num_malformed:,} of {source.rows_read:,} rows "
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
    """The values of the language column in words, most frequent first."""
    counts = Counter(item.row.pair.language for item in rows).most_common(8)
    return ", ".join(f"{shortened(name, 24)} {count:,}" for name, count in counts)


def _first_lines(rows: list[DroppedRow]) -> str:
    shown = ", ".join(
        f"{row.file}:{row.line}" + (f" {shortened(row.seen, 50)}" if row.seen else "") for row in rows[:_LINES_SHOWN]
    )
    return f"{shown}, …" if len(rows) > _LINES_SHOWN else shown


def _malformed(read: RowRead, *, split: Split, file: str) -> DroppedRow:
    return DroppedRow(
        split=split,
        file=file,
        line=read.line,
        seen=read.seen or "(nothing)",
        domain=read.domain.strip().lower(),
        language=normalised_language(read.language),
    )
