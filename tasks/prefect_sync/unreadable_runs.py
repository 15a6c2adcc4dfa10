"""Flow runs that Prefect's server holds and cannot hand out, so that every list fails that one of them stands in.

An integer of more than 64 bits among the parameters does that, or half a character in a name. A form of ours sends
neither; a client of the API can.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from prefect.client.schemas.objects import FlowRun


class UnreadableError(Exception):
    """The server knows what was asked for, and fails at writing its answer."""


@dataclass(frozen=True)
class FoundRuns:
    """Runs as the server has them, and the ids of those without which it would have listed the others."""

    runs: tuple[FlowRun, ...]
    unreadable: tuple[UUID, ...] = ()

    @property
    def count(self) -> int:
        """How many the server has told of."""
        return len(self.runs) + len(self.unreadable)


def read_one_by_one(ids: Sequence[UUID], read: Callable[[Sequence[UUID]], Sequence[FlowRun]]) -> FoundRuns:
    """Every run that can be read; the others are found by halving the list.

    Args:
        read: the runs of these ids; raises UnreadableError where one of them spoils the answer.
    """
    if not ids:
        return FoundRuns(())
    try:
        return FoundRuns(tuple(read(ids)))
    except UnreadableError:
        if len(ids) == 1:
            return FoundRuns((), tuple(ids))
    half = len(ids) // 2
    first, second = read_one_by_one(ids[:half], read), read_one_by_one(ids[half:], read)
    return FoundRuns(first.runs + second.runs, first.unreadable + second.unreadable)


def unreadable_text(flow_run_id: UUID) -> str:
    """What to tell people of it."""
    return (
        f"Prefect cannot show flow run {flow_run_id}, nor any list that it stands in: it holds a value that the server "
        "took and cannot write again, such as a number beyond 64 bits. Delete it, and the lists are back: prefect "
        f"flow-run delete {flow_run_id}"
    )
