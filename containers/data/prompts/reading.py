"""Reads the inputs of filter_prompts: every row of every file, each with its place, malformed ones by reason."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.configs.row_reading import AS_FOUND, RowReading
from containers.contracts.spec import StageInput
from containers.data.filters.inputs import note_and_check, source_inputs
from containers.data.formats.errors import UnknownSchemaError
from containers.data.formats.files import Line, require_rows_among
from containers.data.funnel import DroppedRow, Split
from containers.data.prompts.forms import PromptForm, form_of
from containers.data.prompts.rows import PromptRow
from containers.data.reader import first_objects
from containers.data.rows import MalformedRowError
from containers.data.sources import SINGLE_SOURCE, Placed, Source, lines_by_file
from containers.harness.context import StageContext
from containers.harness.errors import BadDataError


@dataclass(slots=True)
class PlacedPrompt(Placed):
    """A prompt with its place."""

    row: PromptRow


PromptSource: TypeAlias = Source[PlacedPrompt]


def read_prompt_sources(context: StageContext, config: FilterPromptsConfig) -> list[PromptSource]:
    """Read every source: training rows and, if there are any, validation rows.

    Raises:
        BadDataError: a source cannot be read, or more of its rows are malformed than allowed.
    """
    sources = []
    for one in source_inputs(context, config):
        source = read_prompt_source(
            one.item,
            split=one.split,
            name=one.name,
            reader=one.reader,
            reading=one.reading,
            keep=config.keep_columns,
        )
        note_and_check(context, source, max_fraction=config.max_malformed_fraction)
        sources.append(source)
    return sources


def read_prompt_source(
    item: StageInput,
    *,
    split: Split,
    name: str = SINGLE_SOURCE,
    reader: Path | None = None,
    reading: RowReading = AS_FOUND,
    keep: Sequence[str] = (),
) -> PromptSource:
    """Read every row of an input's files; arguments as in `containers.data.sources.read_source`.

    Args:
        keep: further columns that every row must have.

    Raises:
        BadDataError: no data file, a damaged one, or one in an unknown form; very many rows and nearly all malformed;
            or the reader failed.
    """
    source = PromptSource(name=name, origin=item.origin or Path(item.path).name, split=split)
    for file, lines in lines_by_file(item, split=split, reader=reader, reading=reading, section="prompts"):
        for number, found in read_prompt_lines(lines, file=file, reading=reading, keep=keep):
            source.rows_read += 1
            if isinstance(found, MalformedRowError):
                require_rows_among(source.rows_read, num_rows=len(source.rows), name=source.origin)
                seen = found.seen[:80] or "(nothing)"
                source.malformed[found.reason].append(
                    DroppedRow(split=split, source=name, file=file, line=number, seen=seen)
                )
            else:
                source.rows.append(PlacedPrompt(name, split, file, number, found))
    return source


def rows_of_prompt_lines(lines: Iterator[Line], *, file: str, reading: RowReading = AS_FOUND) -> Iterator[PromptRow]:
    """Yield the well-formed rows of lines.

    Raises:
        BadDataError: the form is unknown, or a column is missing; the message names `file`.
    """
    for _, found in read_prompt_lines(lines, file=file, reading=reading):
        if isinstance(found, PromptRow):
            yield found


def read_prompt_lines(
    lines: Iterator[Line], *, file: str, reading: RowReading = AS_FOUND, keep: Sequence[str] = ()
) -> Iterator[tuple[int, PromptRow | MalformedRowError]]:
    """Yield the number of each line, and its row or its fault; most of the first lines decide the form.

    Args:
        keep: further columns that every row must have.

    Raises:
        BadDataError: the form is unknown, or a column is missing; the message names `file`.
    """
    objects, lines = first_objects(lines, file=file, reading=reading)
    form = _detect_form(objects, file=file) if objects else None
    for line in lines:
        try:
            yield line.number, _read(line, form, keep=keep)
        except MalformedRowError as error:
            yield line.number, error


def _detect_form(objects: Sequence[dict[str, object]], *, file: str) -> PromptForm:
    """As `form_of`, for a stage.

    Raises:
        BadDataError: none has the columns of any form; the message shows the columns found.
    """
    try:
        return form_of(objects, file=file)
    except UnknownSchemaError as error:
        raise BadDataError(str(error)) from error


def _read(line: Line, form: PromptForm | None, *, keep: Sequence[str]) -> PromptRow:
    if line.value is None or form is None:
        raise MalformedRowError(line.reason, line.seen)
    try:
        row = form.parse(line.value, keep=keep)
        json.dumps(row.columns, allow_nan=False)
    except RecursionError:
        raise MalformedRowError("invalid_json", "nested too deeply") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, MalformedRowError):
            raise
        raise MalformedRowError("column_not_json", str(error)) from None
    return row
