"""The types of a standard set: its items, its kind, and what its rule says of an answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from containers.evals.suites.base import SuiteItem, SuiteRows


@dataclass(frozen=True)
class SetItem(SuiteItem):
    """A question; a suite's item without responses.

    Attributes:
        further: further turns of the user, each after the answer to the one before.
        answers: right answers; empty where the rule needs none.
        told: what else the rule must know, from the item's row.
    """

    further: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    told: Mapping[str, Any] = field(default_factory=dict, compare=False)


class CannotTellError(Exception):
    """The rule cannot tell whether an answer is right; its text says why, as a clause."""


@dataclass(frozen=True)
class SetKind:
    """A kind of standard set.

    Attributes:
        name: as configurations name it.
        title: as people write it.
        measure: what the share of right answers is called.
        reader: returns the items of a path; gets the title for messages. Its items are `SetItem`.
        value: of an item and the answer's text: 1 for a right answer, 0 for a wrong one; raises CannotTellError. None:
            a reward of the kind's name tells, or judges do, or the harness did.
        source: paper or repository that the rule comes from.
    """

    name: str
    title: str
    measure: str
    reader: Callable[[Path, str], SuiteRows]
    source: str
    value: Callable[[SetItem, str], float] | None = None

    def read(self, path: Path) -> SuiteRows:
        """Return the items of a file or of a folder of files.

        Raises:
            BadDataError: a file is missing or damaged, or has the columns of no layout.
        """
        return self.reader(path, self.title)
