"""One row of each format of a source, whole, as the stage will read it: a swapped column is seen before it is paid for.

Only the beginning of each file is read. The row shown is the first that can be used; where none of them can, the first
that cannot, with its reason.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from containers.contracts.configs.filter_demonstrations import FilterDemonstrationsConfig
from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.configs.parts.row_filters import RowReading
from containers.data.demonstrations.reading import DEMONSTRATIONS as DEMONSTRATION_ROWS
from containers.data.filters.flaws import first_flaw
from containers.data.formats.errors import UnreadableFileError
from containers.data.formats.files import Line, ReadLimit, some_lines
from containers.data.prompts.reading import PROMPTS as PROMPT_ROWS
from containers.data.prompts.wording import as_asked, as_told
from containers.data.reader import ROWS_THAT_SHOW_THE_SCHEMA, RowRead, rows_of_lines
from containers.data.rows import MalformedRowError, Turn
from containers.formatting import one_line, shorten
from containers.harness.errors import BadDataError
from tasks.config.sources import DatasetSource, RowSource
from tasks.sources.hub import hub_revision
from tasks.sources.local import DataPart, data_file_or_folder, data_files, data_parts
from tasks.sources.peek import DEMONSTRATIONS, PREFERENCES, PROMPTS, DataKind
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
        form: the name of the format.
        columns: our names of columns that were given to columns of the file.
        found: what the row says beside its texts, or why it is of no use.
        texts: its turns, and then what belongs to them, each with its name; none if the row cannot be read.
        is_good: whether it can be used.
    """

    file: str
    line: int
    form: str
    columns: Mapping[str, str]
    found: str
    texts: Sequence[tuple[str, str]] = ()
    is_good: bool = False

    def __str__(self) -> str:
        """Several lines: the place, the turns of the prompt, chosen and rejected; or why the row cannot be read."""
        named = ", ".join(f"{ours} is {one_line(theirs, 40)}" for ours, theirs in self.columns.items())
        head = f"{self.file}, row {self.line:,}, read as {self.form}{f' ({named})' if named else ''}"
        return "\n".join([f"{head}{self.found}", *(line for name, text in self.texts for line in _lines(name, text))])


class RowFound(NamedTuple):
    """What a reader makes of one line; attributes as of `RowSample`."""

    line: int
    found: str
    texts: Sequence[tuple[str, str]] = ()
    is_good: bool = False


RowReader: TypeAlias = Callable[[Iterator[Line], str, RowReading], Iterator[RowFound]]


def prompt_samples(prompts: DatasetSource, config: FilterPromptsConfig, *, token: str | None) -> Iterator[str]:
    """As `dataset_samples`, for a prompt set; prompts are shown as the policy gets them."""

    def read(lines: Iterator[Line], file: str, reading: RowReading) -> Iterator[RowFound]:
        for number, found in PROMPT_ROWS.lines(lines, file=file, reading=reading):
            if isinstance(found, MalformedRowError):
                yield _unreadable(number, found.reason, found.seen)
                continue
            difficulty = "" if found.difficulty is None else f", difficulty {found.difficulty:g}"
            answers = [] if found.answer is None else [("reference answer", found.answer)]
            yield RowFound(number, difficulty, [*_turns(as_asked(found.prompt, config)), *answers], is_good=True)

    return _samples(prompts, PROMPTS, read, token=token)


def demonstration_samples(
    demonstrations: DatasetSource, config: FilterDemonstrationsConfig, *, token: str | None
) -> Iterator[str]:
    """As `dataset_samples`, for demonstrations; the turns are shown as the model learns them."""

    def read(lines: Iterator[Line], file: str, reading: RowReading) -> Iterator[RowFound]:
        for number, found in DEMONSTRATION_ROWS.lines(lines, file=file, reading=reading):
            if isinstance(found, MalformedRowError):
                yield _unreadable(number, found.reason, found.seen)
                continue
            turns = [*_turns(as_told(found.prompt, config)), ("assistant", found.answer)]
            learnt = sum(role == "assistant" for role, _ in turns)
            yield RowFound(number, f", {learnt} {'answer' if learnt == 1 else 'answers'} learnt", turns, is_good=True)

    return _samples(demonstrations, DEMONSTRATIONS, read, token=token)


def dataset_samples(source: DatasetSource, *, token: str | None) -> Iterator[str]:
    """Yield one row of each format of each source as text; a sentence for a source that cannot be shown yet.

    Raises:
        SourceError: the hub does not answer for a branch; a local file is missing.
    """
    return _samples(source, PREFERENCES, _pairs, token=token)


def _samples(source: DatasetSource, kind: DataKind, read: RowReader, *, token: str | None) -> Iterator[str]:
    for name, part in source.parts:
        if part.reader is not None:
            yield f"{name or kind.section}: its reader runs in the stage only, so no row is shown here."
            continue
        for place in data_parts(name, part, section=kind.section):
            files = _files_here(part, place, token=token)
            if not files:
                yield f"{place.key}: not fetched yet, so no row is shown here."
            yield from (str(sample) for sample in _sample_files(files, part.reading, kind, read))


def _files_here(source: RowSource, place: DataPart, *, token: str | None) -> dict[str, Path]:
    """The files of a part by their names in messages; empty if they are still on the hub."""
    if source.hub_id is None:
        root = data_file_or_folder(place.place, key=place.key)
        return {f"{place.key}: {file}": file for file in data_files(root)}
    revision = hub_revision("dataset", source.hub_id, revision=source.revision or "", token=token)
    names = files_on_hub(revision, source, place, token=token)
    folder = revision.folder_of(names)
    return {f"{place.key}: {revision.origin} {name}": folder / name for name in names if folder.is_dir()}


def _sample_files(
    files: Mapping[str, Path], reading: RowReading, kind: DataKind, read: RowReader
) -> Iterator[RowSample]:
    """Yield one row of each format among the files, in their order; nothing of a file that cannot be read."""
    shown: dict[str, RowSample] = {}
    for name, path in islice(files.items(), _MAX_FILES):
        try:
            found = _sample(path, name, reading, kind, read)
        except (UnreadableFileError, BadDataError, OSError):  # the check says what is wrong
            continue
        if found is not None and (found.form not in shown or not shown[found.form].is_good):
            shown[found.form] = found
    yield from shown.values()


def _sample(path: Path, name: str, reading: RowReading, kind: DataKind, read: RowReader) -> RowSample | None:
    head = list(islice(some_lines(path, limit=ReadLimit(_HEAD_BYTES)), ROWS_THAT_SHOW_THE_SCHEMA))
    objects = [line.value for line in head if line.value is not None]
    if not objects:
        return None
    form = kind.form_name(reading, objects, name)
    reads = list(read(iter(head), name, reading))
    best = next((found for found in reads if found.is_good), None) or next(
        (found for found in reads if found.found), None
    )
    return None if best is None else RowSample(name, best.line, form, reading.columns, *best[1:])


def _pairs(lines: Iterator[Line], file: str, reading: RowReading) -> Iterator[RowFound]:
    """The rows up to the point where a file is refused: unpaired completions may meet after the head."""
    head = list(lines)
    try:
        for read in rows_of_lines(iter(head), file=file, reading=reading):
            yield _pair(read)
    except BadDataError:
        yield _unreadable(1, "no_completion_of_other_label", f"in the first {len(head)} rows")


def _pair(read: RowRead) -> RowFound:
    if read.row is None:
        return _unreadable(read.line, read.reason, read.seen)
    pair, flaw = read.row.pair, first_flaw(read.row)
    found = f"; it will be dropped as {flaw}" if flaw else f", strength {pair.margin:g}"
    return RowFound(
        read.line, found, [*_turns(pair.prompt), ("chosen", pair.chosen), ("rejected", pair.rejected)], not flaw
    )


def _unreadable(line: int, reason: str, seen: str) -> RowFound:
    """A row of no use; without a text if the line is blank, so that it is not shown."""
    if reason == "blank_line":
        return RowFound(line, "")
    shown = one_line(seen, _REASON_CHARACTERS)
    return RowFound(line, f": none of the first rows can be read; this one is {reason} ({shown}).")


def _turns(prompt: Sequence[Turn]) -> list[tuple[str, str]]:
    return [(turn["role"], turn["content"]) for turn in prompt]


def _lines(name: str, text: str) -> Iterator[str]:
    first, *others = shorten(text, SHOWN_CHARACTERS).split("\n")
    yield f"  {name}: {first}"
    yield from (f"{_INDENT}{line}" for line in others)
