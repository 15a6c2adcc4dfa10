"""The funnel by group: rows in and out of every filter for each domain, language, strength and source."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from containers.contracts.records import Funnel, FunnelStep

Counts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One filter seen by one group: `dropped` of `rows_in` rows."""

    reason: str
    rows_in: int
    dropped: int

    @property
    def rows_out(self) -> int:
        """Rows that go on."""
        return self.rows_in - self.dropped


def groups_of(funnel: Funnel) -> dict[str, dict[str, list[GroupStep]]]:
    """For each kind of group its groups, most rows first (strengths: weakest first), each with every filter in order.

    Example: `groups_of(funnel)["domain"]["code"][0]` is the first filter as the rows of the domain code saw it.
    """
    return {
        kind: {name: _steps(funnel, name, kind=kind, read=count) for name, count in read}
        for kind, read in _read(funnel).items()
    }


def write_funnel_table(path: Path, funnel: Funnel) -> None:
    """Write one line per filter and group that still has rows there, as CSV."""
    with open(path, "w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("kind", "group", "filter", "rows_in", "dropped", "rows_out"))
        writer.writerows(_lines(funnel))


def _lines(funnel: Funnel) -> Iterator[tuple[str, str, str, int, int, int]]:
    for kind, groups in groups_of(funnel).items():
        for name, steps in groups.items():
            for step in steps:
                if step.rows_in:
                    yield kind, name, step.reason, step.rows_in, step.dropped, step.rows_out


def _read(funnel: Funnel) -> dict[str, Counts]:
    return {
        "domain": funnel.read_by_domain,
        "language": funnel.read_by_language,
        "strength": tuple(sorted(funnel.read_by_strength)),
        "source": funnel.read_by_source,
    }


def _steps(funnel: Funnel, name: str, *, kind: str, read: int) -> list[GroupStep]:
    steps: list[GroupStep] = []
    left = read
    for step in funnel.steps:
        steps.append(GroupStep(step.reason, left, dict(_dropped(step, kind)).get(name, 0)))
        left = steps[-1].rows_out
    return steps


def _dropped(step: FunnelStep, kind: str) -> Counts:
    return {
        "domain": step.dropped_by_domain,
        "language": step.dropped_by_language,
        "strength": step.dropped_by_strength,
        "source": step.dropped_by_source,
    }[kind]
