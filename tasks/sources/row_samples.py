"""One row of each format of a source, whole, as the stage will read it: a swapped column is seen before it is paid for.

Only the beginning of each file is read. The row shown is the first that can be used; where none of them can, the first
that cannot, with its reason.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from containers.contracts.configs.row_reading import RowReading
from containers.data.filters.flaws import first_flaw
from containers.data.formats.columns import schema_of
from containers.data.formats.errors import UnreadableFileError
from containers.data.formats.files import Line, ReadLimit, some_lines
from containers.data.reader import ROWS_THAT_SHOW_THE_SCHEMA, RowRead, rows_of_lines
from containers.data.renamed_columns import renamed, require_columns
from containers.formatting import one_line, shorten
from containers.harness.errors import BadDataError
from tasks.config.sources import DatasetSource, RowSource
from tasks.sources.hub import hub_revision
from tasks.sources.local import DataPart, data_file_or_folder, data_files, data_parts
from tasks.sources.resolve import files_on_hub

# A text of the row that is longer is cut, and its length is told.
SHOWN_CHARACTERS = 2000
_HEAD_BYTES = 64 * 1024**2
_MAX_FILES = 20
_REASON_CHARACTERS = 120
_INDENT = "    "


@dataclass(frozen=True)
class RowSample:
    """A row as the stage will read it, and where it stands.

    Attributes:
        schema: the name of the format.
        columns: our names of columns that were given to columns of the file.
    """

    file: str
    schema: str
    columns: Mapping[str, str]
    read: RowRead

    def __str__(self) -> str:
        """Several lines: the place, the turns of the prompt, chosen and rejected; or why the row cannot be read."""
        named = ", ".join(f"{ours} is {one_line(theirs, 40)}" for ours, theirs in self.columns.items())
        head = f"{self.file}, row {self.read.line:,}, read as {self.schema}{f' ({named})' if named else ''}"
        if self.read.row is None:
            seen = one_line(self.read.seen, _REASON_CHARACTERS)
            return f"{head}: none of the first rows can be read; this one is {self.read.reason} ({seen})."
        pair = self.read.row.pair
        flaw = first_flaw(self.read.row)
        found = f"; it will be dropped as {flaw}" if flaw else f", strength {pair.margin:g}"
        texts = [(turn["role"], turn["content"]) for turn in pair.prompt]
        texts += [("chosen", pair.chosen), ("rejected", pair.rejected)]
        return "\n".join([f"{head}{found}", *(line for name, text in texts for line in _lines(name, text))])


def dataset_samples(source: DatasetSource, *, token: str | None) -> Iterator[str]:
    """Yield one row of each format of each source as text; a sentence for a source that cannot be shown yet.

    Raises:
        SourceError: the hub does not answer for a branch; a local file is missing.
    """
    for name, part in source.parts:
        if part.reader is not None:
            yield f"{name or 'dataset'}: its reader runs in the stage only, so no row is shown here."
            continue
        for place in data_parts(name, part):
            files = _files_here(part, place, token=token)
            if not files:
                yield f"{place.key}: not fetched yet, so no row is shown here."
            yield from (str(sample) for sample in sample_rows(files, part.reading))


def _files_here(source: RowSource, place: DataPart, *, token: str | None) -> dict[str, Path]:
    """The files of a part by their names in messages; empty if they are still on the hub."""
    if source.hub_id is None:
        root = data_file_or_folder(place.place, key=place.key)
        return {f"{place.key}: {file}": file for file in data_files(root)}
    revision = hub_revision("dataset", source.hub_id, revision=source.revision or "", token=token)
    names = files_on_hub(revision, source, place, token=token)
    folder = revision.folder_of(names)
    return {f"{place.key}: {revision.origin} {name}": folder / name for name in names if folder.is_dir()}


def sample_rows(files: Mapping[str, Path], reading: RowReading) -> Iterator[RowSample]:
    """Yield one row of each format among the files, in their order; nothing of a file that cannot be read.

    Args:
        files: path by the file's name for messages.
    """
    shown: dict[str, RowSample] = {}
    for name, path in islice(files.items(), _MAX_FILES):
        try:
            found = _sample(path, name, reading)
        except (UnreadableFileError, BadDataError, OSError):  # the check says what is wrong
            continue
        if found is not None and (found.schema not in shown or not _is_good(shown[found.schema].read)):
            shown[found.schema] = found
    yield from shown.values()


def _sample(path: Path, name: str, reading: RowReading) -> RowSample | None:
    head = list(islice(some_lines(path, limit=ReadLimit(_HEAD_BYTES)), ROWS_THAT_SHOW_THE_SCHEMA))
    objects = [line.value for line in head if line.value is not None]
    if not objects:
        return None
    require_columns(objects, reading.columns, file=name)
    schema = schema_of([renamed(value, reading.columns) for value in objects], file=name)
    reads = list(_reads(head, name, reading))
    best = next((read for read in reads if _is_good(read)), None) or next(
        (read for read in reads if read.reason != "blank_line"), None
    )
    return None if best is None else RowSample(name, schema.name, reading.columns, best)


def _reads(head: list[Line], name: str, reading: RowReading) -> Iterator[RowRead]:
    """The rows up to the point where a file is refused: unpaired completions may meet after the head."""
    try:
        yield from rows_of_lines(iter(head), file=name, reading=reading)
    except BadDataError:
        yield RowRead(1, None, "no_completion_of_other_label", f"in the first {len(head)} rows")


def _is_good(read: RowRead) -> bool:
    return read.row is not None and not first_flaw(read.row)


def _lines(name: str, text: str) -> Iterator[str]:
    first, *others = shorten(text, SHOWN_CHARACTERS).split("\n")
    yield f"  {name}: {first}"
    yield from (f"{_INDENT}{line}" for line in others)
