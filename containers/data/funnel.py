"""Counts of the rows that each filter kept and dropped, and their text table. Raises unless kept + dropped = read."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from containers.contracts.funnel import FunnelStep

Split = Literal["train", "validation"]

UNKNOWN = "unknown"
# The columns by which rows are counted.
GROUP_KINDS = ("domain", "language", "strength", "source")
_TEXTS = ("seen", "source", "domain", "language", "strength", "prompt", "chosen", "rejected")
MAX_EXAMPLES = 5
MAX_DROPPED_KEPT_PER_REASON = 20
_EXAMPLE_CHARACTERS = 160
_TEXT_CHARACTERS = 200


@dataclass(frozen=True)
class DroppedRow:
    """A dropped row as `dropped.jsonl` shows it; `seen` says what was wrong, `split` which source it came from."""

    split: Split
    file: str
    line: int
    seen: str = ""
    source: str = ""
    domain: str = ""
    language: str = ""
    strength: str = ""
    prompt: str = ""
    chosen: str = ""
    rejected: str = ""

    def as_json(self, reason: str) -> dict[str, str | int]:
        """Return one line of `dropped.jsonl`: texts are shortened, empty columns left out."""
        shown = {name: shortened(text, _TEXT_CHARACTERS) for name in _TEXTS if (text := getattr(self, name))}
        return {"reason": reason, "file": self.file, "line": self.line, **shown}


@dataclass
class Tally:
    """The number of rows read, and the rows that each step dropped, in order."""

    rows_read: int
    steps: list[FunnelStep] = field(default_factory=list)

    @property
    def rows_left(self) -> int:
        """Rows that no step has dropped yet; the rows in of the next step."""
        return self.steps[-1].rows_out if self.steps else self.rows_read

    @property
    def num_dropped(self) -> int:
        """Rows that the steps have dropped."""
        return sum(step.dropped for step in self.steps)

    def step(self, reason: str, dropped: Sequence[DroppedRow]) -> None:
        """Record a filter and the rows that it dropped; a filter that dropped none is recorded too."""
        self.steps.append(
            FunnelStep(
                reason=reason,
                rows_in=self.rows_left,
                rows_out=self.rows_left - len(dropped),
                examples=tuple(
                    shortened(f"{row.file}:{row.line}: {row.seen or row.prompt}", _EXAMPLE_CHARACTERS)
                    for row in dropped[:MAX_EXAMPLES]
                ),
                **{
                    f"dropped_by_{kind}": counted(getattr(row, kind) or UNKNOWN for row in dropped)
                    for kind in GROUP_KINDS
                },
            )
        )


class FunnelCounter:
    """Counts every row once in `total` and once in the tally of its source.

    Sources are counted apart, because a total hides what the filters left of each.

    Args:
        rows_read: rows of each source; a run without a validation source has only `train`.
    """

    def __init__(self, rows_read: Mapping[Split, int]) -> None:
        self.total = Tally(sum(rows_read.values()))
        self.of_source = {split: Tally(count) for split, count in rows_read.items()}
        self.examples: list[dict[str, str | int]] = []

    def step(self, reason: str, dropped: Sequence[DroppedRow]) -> None:
        """Record a filter and the rows that it dropped, with some of them as examples."""
        self.total.step(reason, dropped)
        for split, tally in self.of_source.items():
            tally.step(reason, [row for row in dropped if row.split == split])
        self.examples.extend(row.as_json(reason) for row in dropped[:MAX_DROPPED_KEPT_PER_REASON])

    def check(self, kept: Mapping[str, int]) -> None:
        """Make sure that no row was lost or counted twice.

        Raises:
            RuntimeError: kept + dropped differs from read; a fault of this program, not of the data.
        """
        num_kept, total = sum(kept.values()), self.total
        if num_kept + total.num_dropped != total.rows_read:
            raise RuntimeError(
                f"Rows were lost: read {total.rows_read}, kept {num_kept} ({dict(kept)}), dropped {total.num_dropped}. "
                f"This is a fault of filter_dataset, please report it."
            )


def counted(names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Names with their counts, most frequent first, then by name."""
    return tuple(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def shortened(text: str, limit: int) -> str:
    """`text` on one line and at most `limit` characters long."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def dropped_text(tally: Tally, *, most: int = 3) -> str:
    """Number of dropped rows, and the reasons that dropped the most: `74 dropped (24 tie, 20 duplicate)`."""
    steps = sorted((step for step in tally.steps if step.dropped), key=lambda step: -step.dropped)
    reasons = [f"{step.dropped:,} {step.reason}" for step in steps[:most]]
    if len(steps) > most:
        reasons.append(f"{sum(step.dropped for step in steps[most:]):,} for {len(steps) - most} other reasons")
    return f"{tally.num_dropped:,} dropped" + (f" ({', '.join(reasons)})" if reasons else "")


def funnel_table(tally: Tally) -> str:
    """The funnel as text: reason, rows in, dropped, rows out, and where the dropped rows came from."""
    header = ("filter", "in", "dropped", "out", "dropped by domain", "dropped by language")
    rows = [header, ("read", "", "", f"{tally.rows_read:,}", "", "")]
    rows += [
        (
            step.reason,
            f"{step.rows_in:,}",
            f"{step.dropped:,}",
            f"{step.rows_out:,}",
            _counts_text(step.dropped_by_domain),
            _counts_text(step.dropped_by_language),
        )
        for step in tally.steps
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in (1, 2, 3) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _counts_text(counts: tuple[tuple[str, int], ...], *, most: int = 3) -> str:
    shown = ", ".join(f"{shortened(name, 24)} {count:,}" for name, count in counts[:most])
    return f"{shown}, …" if len(counts) > most else shown
