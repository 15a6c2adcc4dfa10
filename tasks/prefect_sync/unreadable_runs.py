"""Find flow runs that Prefect's server has and cannot send, so that every list with one of them fails.

The cause is an integer of more than 64 bits among the parameters, or half a character in a name. Our forms send
neither; a client of the API can.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from prefect.client.schemas.objects import FlowRun


class UnreadableError(Exception):
    """The server has the data, and fails to write its answer."""


@dataclass(frozen=True)
class FoundRuns:
    """Runs as the server has them, and the ids of those that break its lists."""

    runs: tuple[FlowRun, ...]
    unreadable: tuple[UUID, ...] = ()

    @property
    def count(self) -> int:
        """Number of all runs, readable or not."""
        return len(self.runs) + len(self.unreadable)


def read_one_by_one(ids: Sequence[UUID], read: Callable[[Sequence[UUID]], Sequence[FlowRun]]) -> FoundRuns:
    """Read every run that can be read; find the others by halving the list.

    Args:
        read: returns the runs of these ids; raises UnreadableError if one of them breaks the answer.
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
    """Return the message about an unreadable run."""
    return (
        f"Prefect cannot show flow run {flow_run_id}, nor any list that contains it: it has a value that the server "
        "took and cannot write again, such as a number beyond 64 bits. Delete it to get the lists back: prefect "
        f"flow-run delete {flow_run_id}"
    )
