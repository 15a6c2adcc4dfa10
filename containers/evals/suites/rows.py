"""Read a benchmark's files into items: this module checks columns, ids and texts; each benchmark parses its rows.

Every row becomes an item, or is counted under the reason why there is none.
"""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from containers.data.filters.flaws import control_token_in
from containers.data.formats.columns import NAME_CHARACTERS, names_shown
from containers.data.formats.files import Line, data_files, line_of, read_lines
from containers.data.rows import MalformedRowError, read_prompt, read_response
from containers.evals.suites.base import Comparison, Row, SuiteItem, SuiteRows, Turn, UnknownSubsetError, row_id
from containers.formatting import one_line
from containers.harness.errors import BadDataError

_SEEN_CHARACTERS = 80
_EXAMPLES_PER_REASON = 3
_MAX_ARRAY_BYTES = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout of a benchmark's files: the columns that must be there, and the parser of a row.

    `parse` raises MalformedRowError for a row that cannot be used.
    """

    columns: tuple[str, ...]
    parse: Callable[[Row], SuiteItem]


def read_suite(
    path: Path, title: str, *, layouts: Sequence[Layout], said_by_place: Callable[[Path], Row] = lambda file: {}
) -> SuiteRows:
    """Read the items of a file, or of all data files of a folder, in order.

    Args:
        path: jsonl, jsonl.gz or parquet; a single file may also be a JSON array of objects.
        title: of the benchmark, for messages.
        layouts: the known layouts; each file has the one that most of its rows have.
        said_by_place: columns that follow from a file's path; a column of the same name in the row comes first.

    Raises:
        BadDataError: a file is missing or damaged, has the columns of no layout, or all its subsets are unknown.
    """
    tally = RowTally(title=title)
    for file in data_files(path):
        _read_file(file, layouts, tally, said_by_place(file))
    return tally.rows()


def _read_file(file: Path, layouts: Sequence[Layout], tally: "RowTally", said: Row) -> None:
    lines = tuple(line if line.value is None else line._replace(value={**said, **line.value}) for line in _lines(file))
    objects = [line.value for line in lines if line.value is not None]
    layout = _layout_of(objects, layouts, file=file.name, title=tally.title) if objects else None
    for line in lines:
        place = f"{file.name} line {line.number}"
        if line.value is None or layout is None:
            tally.leave_out(line.reason, place, line.seen)
            continue
        try:
            absent = [name for name in layout.columns if name not in line.value]
            if absent:
                raise MalformedRowError("missing_column", ", ".join(absent))
            tally.add(replace(layout.parse(line.value), line=line.number), place)
        except UnknownSubsetError as error:
            tally.unknown(error, place)
        except MalformedRowError as error:
            tally.leave_out(error.reason, place, error.seen)


@dataclass
class RowTally:
    """The items and the left-out rows of a suite that is being read."""

    title: str
    items: list[SuiteItem] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    _examples: list[str] = field(default_factory=list)
    _seen_ids: set[str] = field(default_factory=set)
    _unknown: Counter[str] = field(default_factory=Counter)
    _known: tuple[str, ...] = ()

    def add(self, item: SuiteItem, place: str) -> None:
        """Keep the item, unless an earlier one has its id."""
        if item.item_id in self._seen_ids:
            self.leave_out("duplicate_id", place, item.item_id)
            return
        self._seen_ids.add(item.item_id)
        self.items.append(item)

    def leave_out(self, reason: str, place: str, seen: str) -> None:
        """Count a row that is no item; the first of each reason are kept as examples."""
        self.left_out[reason] += 1
        if self.left_out[reason] <= _EXAMPLES_PER_REASON:
            self._examples.append(f"{place}: {reason}: {one_line(seen, _SEEN_CHARACTERS)}")

    def unknown(self, error: UnknownSubsetError, place: str) -> None:
        """Count a row of an unknown subset."""
        self._unknown[one_line(error.seen, NAME_CHARACTERS)] += 1
        self._known = error.known
        self.leave_out(error.reason, place, error.seen)

    def rows(self) -> SuiteRows:
        """Return what was read.

        Raises:
            BadDataError: there is no item, and the subset of a row is unknown: it is another benchmark's file.
        """
        if self._unknown and not self.items:
            raise BadDataError(
                f"No row can be used for {self.title}: its subsets are unknown. Found: "
                f"{names_shown(self._unknown)}; known: {', '.join(self._known)}. "
                "Name the benchmark that the file belongs to, or correct the column that names the subset."
            )
        return SuiteRows(
            items=tuple(self.items),
            rows_read=len(self.items) + self.left_out.total(),
            left_out=dict(self.left_out),
            examples=tuple(self._examples),
        )


def suite_item(
    *,
    prompt: object,
    responses: Sequence[object],
    subset: str,
    comparisons: Sequence[Comparison],
    item_id: str = "",
) -> SuiteItem:
    """Return an item whose texts can be scored, with an id made from them if the row has none.

    Args:
        prompt: text, or turns that end with the user's.
        responses: two or more, each a text, or a list with one turn of the assistant.

    Raises:
        MalformedRowError: a text is empty, no text, impossible in UTF-8, or forges a turn of a chat template; or two
            responses that are compared are equal.
    """
    # By the rules of preference pairs: texts that may train may be scored.
    turns, texts = read_prompt(prompt), tuple(map(_response, responses))
    if token := control_token_in((*(turn["content"] for turn in turns), *texts)):
        raise MalformedRowError("control_tokens", token)
    for one, other in [(pair.better, pair.worse) for pair in comparisons] or [(0, -1)]:
        if texts[one].strip() == texts[other].strip():
            raise MalformedRowError("equal_responses", texts[one])
    return SuiteItem(
        item_id=item_id or digest(turns, texts),
        prompt=turns,
        responses=texts,
        subset=subset,
        comparisons=tuple(comparisons),
    )


def pair_item(*, prompt: object, chosen: object, rejected: object, subset: str, item_id: str = "") -> SuiteItem:
    """An item of two responses, the better one first."""
    return suite_item(
        prompt=prompt, responses=(chosen, rejected), subset=subset, comparisons=(Comparison(0, 1),), item_id=item_id
    )


def preference_item(row: Row, *, subset: str) -> SuiteItem:
    """An item of the columns `prompt`, `chosen`, `rejected`, and `id` where the row has one."""
    return pair_item(
        prompt=row["prompt"],
        chosen=row["chosen"],
        rejected=row["rejected"],
        subset=subset,
        item_id=row_id(row, "id"),
    )


def digest(prompt: Sequence[Turn], responses: Sequence[str]) -> str:
    """Digest of a prompt with its responses, in 16 hexadecimal digits."""
    parts = [part for turn in prompt for part in (turn["role"], turn["content"])]
    return hashlib.sha256("\0".join((*parts, *responses)).encode()).hexdigest()[:16]


def with_digest(item: SuiteItem) -> SuiteItem:
    """Return the item with a digest of its texts in its id, for benchmarks where several rows may have one id."""
    return replace(item, item_id=f"{item.item_id}:{digest(item.prompt, item.responses)[:8]}")


def _response(value: object) -> str:
    """A response: text, or a list with one turn of the assistant."""
    if not isinstance(value, list | tuple):
        return read_response(value)
    if len(value) == 1 and isinstance(value[0], Mapping) and value[0].get("role") == "assistant":
        return read_response(value[0].get("content"))
    raise MalformedRowError("completion_not_one_turn", repr(value))


def _layout_of(objects: Sequence[Row], layouts: Sequence[Layout], *, file: str, title: str) -> Layout:
    """Return the layout that most rows have; the first if several are equal."""
    hits = [sum(all(name in row for name in layout.columns) for row in objects) for layout in layouts]
    if any(hits):
        return layouts[hits.index(max(hits))]
    found = Counter(name for row in objects for name in row)
    nearest = min(layouts, key=lambda layout: len(set(layout.columns) - set(found)))
    missing = [name for name in nearest.columns if name not in found]
    wanted = "; or ".join(", ".join(layout.columns) for layout in layouts)
    raise BadDataError(
        f"{file} is no file of {title}. "
        f"Missing columns: {', '.join(missing) or 'none, but no row has them all'}. "
        f"Found: {names_shown(found)}. Wanted: {wanted}. "
        "Rename the columns, or name the benchmark that the file belongs to."
    )


def _lines(file: Path) -> Iterator[Line]:
    """Yield the lines of a data file, or the entries of a file that is one JSON array, numbered from 1."""
    with open(file, "rb") as stream:
        is_array = stream.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    if not is_array:
        yield from read_lines(file)
        return
    if file.stat().st_size > _MAX_ARRAY_BYTES:
        raise BadDataError(
            f"{file.name} is a JSON array of more than {_MAX_ARRAY_BYTES // 1024**2} MiB, which has to be read as a "
            "whole. Write it as JSON lines."
        )
    try:
        entries = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadDataError(
            f"{file.name} begins like a JSON array and is none: {one_line(str(error), _SEEN_CHARACTERS)}. "
            "Download it again, or write it as JSON lines."
        ) from error
    yield from itertools.starmap(line_of, enumerate(entries, start=1))
