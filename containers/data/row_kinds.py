"""Kinds of rows whose form is known by its columns, such as prompts; reads their files, malformed rows by reason.

The check, the plan and the stages read with it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from containers.contracts.configs.parts.row_filters import AS_FOUND, RowFilters, RowReading
from containers.contracts.spec import StageInput
from containers.data.filters.inputs import note_and_check, source_inputs
from containers.data.formats.columns import names_shown
from containers.data.formats.errors import UnknownSchemaError
from containers.data.formats.files import Line, require_rows_among
from containers.data.funnel import DroppedRow, Split
from containers.data.reader import first_objects
from containers.data.row_forms import RowForm, RowT
from containers.data.rows import MalformedRowError
from containers.data.sources import SINGLE_SOURCE, PlacedT, Source, lines_by_file
from containers.harness.context import StageContext
from containers.harness.errors import BadDataError


@dataclass(frozen=True)
class RowKind(Generic[RowT, PlacedT]):
    """All forms of one kind of rows.

    Attributes:
        what: what the rows hold, in the plural, for messages.
        section: of the run that names their source.
        placed: makes a row with its source, split, file and line.
    """

    what: str
    section: str
    forms: tuple[RowForm[RowT], ...]
    placed: Callable[[str, Split, str, int, RowT], PlacedT]

    def form_of(self, rows: Iterable[Iterable[str]], *, file: str) -> RowForm[RowT]:
        """Return the form whose columns most of `rows` have; the first in `forms` if several are equal.

        Args:
            rows: the column names of each row.
            file: how messages name the file.

        Raises:
            UnknownSchemaError: no row has the columns of any form.
        """
        hits: Counter[str] = Counter()
        found: Counter[str] = Counter()
        for row in rows:
            names = tuple(row)
            found.update(names)
            hits.update(form.name for form in self.forms if form.fits(names))
        if not hits:
            wanted = "; ".join(f"{form.name} (`{'`, `'.join(form.columns)}`)" for form in self.forms)
            raise UnknownSchemaError(
                file,
                f"has no columns that are known to hold {self.what}. Columns found: {names_shown(found)}.",
                f"Wanted one of: {wanted}. Name the columns in {self.section}.columns (our name: the file's name), or "
                f"convert the file.",
            )
        best = max(hits.values())
        return next(form for form in self.forms if hits[form.name] == best)

    def lines(
        self, lines: Iterator[Line], *, file: str, reading: RowReading = AS_FOUND, keep: Sequence[str] = ()
    ) -> Iterator[tuple[int, RowT | MalformedRowError]]:
        """Yield the number of each line, and its row or its fault; most of the first lines decide the form.

        Args:
            keep: further columns that every row must have.

        Raises:
            BadDataError: the form is unknown, or a column is missing; the message names `file`.
        """
        objects, lines = first_objects(lines, file=file, reading=reading)
        try:
            form = self.form_of(objects, file=file) if objects else None
        except UnknownSchemaError as error:
            raise BadDataError(str(error)) from error
        for line in lines:
            try:
                if line.value is None or form is None:
                    raise MalformedRowError(line.reason, line.seen)
                yield line.number, form.row_of(line.value, keep=keep)
            except MalformedRowError as error:
                yield line.number, error

    def rows(self, lines: Iterator[Line], *, file: str, reading: RowReading = AS_FOUND) -> Iterator[RowT]:
        """Yield the well-formed rows of lines.

        Raises:
            BadDataError: the form is unknown, or a column is missing; the message names `file`.
        """
        for _, found in self.lines(lines, file=file, reading=reading):
            if not isinstance(found, MalformedRowError):
                yield found

    def source(
        self,
        item: StageInput,
        *,
        split: Split,
        name: str = SINGLE_SOURCE,
        reader: Path | None = None,
        reading: RowReading = AS_FOUND,
        keep: Sequence[str] = (),
    ) -> Source[PlacedT]:
        """Read every row of an input's files; arguments as in `containers.data.sources.read_source`.

        Args:
            keep: further columns that every row must have.

        Raises:
            BadDataError: no data file, a damaged one, or one in an unknown form; very many rows and nearly all
                malformed; or the reader failed.
        """
        source: Source[PlacedT] = Source(name=name, origin=item.origin or Path(item.path).name, split=split)
        for file, lines in lines_by_file(item, split=split, reader=reader, reading=reading, section=self.section):
            for number, found in self.lines(lines, file=file, reading=reading, keep=keep):
                source.rows_read += 1
                if isinstance(found, MalformedRowError):
                    require_rows_among(source.rows_read, num_rows=len(source.rows), name=source.origin)
                    seen = found.seen[:80] or "(nothing)"
                    source.malformed[found.reason].append(
                        DroppedRow(split=split, source=name, file=file, line=number, seen=seen)
                    )
                else:
                    source.rows.append(self.placed(name, split, file, number, found))
        return source

    def sources(self, context: StageContext, config: RowFilters, *, keep: Sequence[str] = ()) -> list[Source[PlacedT]]:
        """Read every source of a stage: training rows and, if there are any, validation rows.

        Raises:
            BadDataError: a source cannot be read, or more of its rows are malformed than allowed.
        """
        sources = []
        for one in source_inputs(context, config):
            source = self.source(
                one.item, split=one.split, name=one.name, reader=one.reader, reading=one.reading, keep=keep
            )
            note_and_check(context, source, max_fraction=config.max_malformed_fraction)
            sources.append(source)
        return sources
