"""A reward whose values come from processes that can be killed."""

from collections.abc import Callable, Sequence
from typing import Any

from containers.rewards.base import Answered, Reward, Value
from containers.rewards.processes.workers import Workers


class WorkerReward(Reward):
    """Values of jobs made from completions.

    Args:
        job_of: what a worker gets for a completion.
    """

    def __init__(self, workers: Workers, job_of: Callable[[Answered], Any]) -> None:
        self._workers = workers
        self._job_of = job_of

    def values(self, answered: Sequence[Answered]) -> list[Value]:
        """Return the value of each completion, or why the worker found none."""
        return list(self._workers.values([self._job_of(one) for one in answered]))

    def close(self) -> None:
        """End the processes."""
        self._workers.close()
