"""The types of a suite: its items, its figures, and the benchmark that reads and judges it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from containers.contracts.outcome import Metric
from containers.data.rows import MalformedRowError, clean_text, prompt_identity
from containers.evals.intervals import LinearFigure

Turn = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One response that should score higher than another, of the same item.

    Attributes:
        better: place of the better response in the item's responses.
        worse: place of the worse one.
        cell: the place of the comparison in a grid, for example `concise-detailed`; empty: no grid.
    """

    better: int
    worse: int
    cell: str = ""


@dataclass(frozen=True)
class SuiteItem:
    """A prompt, the responses to it, and which of them should score higher than which.

    Attributes:
        item_id: stable within the suite; from the row itself, or made from its content.
        prompt: messages, the last one the user's.
        responses: texts of the assistant's last turn.
        subset: the part of the suite that the item belongs to.
        comparisons: empty where people found the responses equally good.
        line: of the file, counted from 1.
    """

    item_id: str
    prompt: tuple[Turn, ...]
    responses: tuple[str, ...]
    subset: str
    comparisons: tuple[Comparison, ...]
    line: int = 0

    @cached_property
    def prompt_id(self) -> str:
        """The same for items with the same prompt, which are no independent evidence."""
        return prompt_identity(self.prompt)


@dataclass(frozen=True)
class SuiteRows:
    """The rows of a file. `left_out` counts rows by reason, `examples` shows some as `line: what was seen`."""

    items: tuple[SuiteItem, ...]
    rows_read: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """An item and one score per response, in the order of its responses."""

    item: SuiteItem
    scores: tuple[float, ...]


@dataclass(frozen=True)
class SuiteFigures:
    """The figures of a suite by its own rule.

    Attributes:
        score: the one figure that the suite publishes, named `score`, a fraction with interval and count.
        sections: its weighted parts, in the suite's order; empty where it has none.
        subsets: one figure per subset.
        missing: subsets or sections of the suite that this file lacks, so that `score` is not the published one.
        whole: the score with what each prompt adds to it, to compare two models.
        shares: subset → its share in the score; empty: each item counts the same.
    """

    score: Metric | None
    sections: tuple[Metric, ...] = ()
    subsets: tuple[Metric, ...] = ()
    missing: tuple[str, ...] = ()
    whole: LinearFigure | None = field(default=None, compare=False)
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Intervals:
    """The settings of intervals: level, resamples of the bootstrap over prompts, seed."""

    confidence: float
    num_bootstrap: int
    seed: int


@dataclass(frozen=True)
class Benchmark:
    """A kind of suite.

    Attributes:
        name: as configurations name it.
        title: as people write it.
        reader: returns the rows of a path; gets the title for messages.
        judge: computes the figures of scored items.
        tie_rule: how equal scores, or equally good responses, count; one sentence for the certificate.
        source: paper or repository that the rule comes from.
        guessing: the score of a model that guesses.
    """

    name: str
    title: str
    reader: Callable[[Path, str], SuiteRows]
    judge: Callable[[Sequence[ScoredItem], Intervals], SuiteFigures]
    tie_rule: str
    source: str
    guessing: float = 0.5

    def read(self, path: Path) -> SuiteRows:
        """Return the rows of a file or of a folder of files.

        Raises:
            BadDataError: a file is missing or damaged, columns are missing, or all its subsets are unknown.
        """
        return self.reader(path, self.title)


Row = Mapping[str, Any]


class UnknownSubsetError(MalformedRowError):
    """A row of a subset that the benchmark lacks; `seen` is its name, `known` are the benchmark's names."""

    def __init__(self, subset: object, known: Sequence[str]) -> None:
        super().__init__("unknown_subset", subset)
        self.known = tuple(known)


def row_id(row: Row, *names: str) -> str:
    """Return the id of a row, from the first of the columns `names` that it has; empty if it has none.

    Example: 12.0, as parquet writers turn integers into floats, gives `12`.
    """
    value = next((row[name] for name in names if row.get(name) is not None), None)
    if value is None or value != value:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise MalformedRowError("id_not_text_or_number", repr(value))
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return clean_text(text)


def text_column(row: Row, name: str) -> str:
    """The text of a column, stripped.

    Raises:
        MalformedRowError: it is empty or no text.
    """
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise MalformedRowError(f"{name}_not_text", repr(value))
    return clean_text(value.strip())


def list_column(row: Row, name: str) -> list[object]:
    """The list of a column, at least one entry long.

    Raises:
        MalformedRowError: it is empty or no list.
    """
    value = row.get(name)
    if not isinstance(value, list | tuple) or not value:
        raise MalformedRowError(f"{name}_not_a_list", repr(value))
    return list(value)


def known_subset(name: str, known: Sequence[str]) -> str:
    """The published spelling of a subset's name; upper and lower case are the same.

    Raises:
        UnknownSubsetError: the benchmark has no such subset.
    """
    spelling = {item.casefold(): item for item in known}.get(name.casefold())
    if spelling is None:
        raise UnknownSubsetError(name, known)
    return spelling
