"""Which rank of a stage died of what, as torchrun says in the last lines of the log.

The other ranks only see that their connection broke, so their own failure hides the cause.

Source: torch 2.13, torch/distributed/elastic/multiprocessing/api.py and errors/__init__.py.
"""

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

_RANK = re.compile(r"^\s*rank\s+: (\d+) \(local_rank: \d+\)")
_EXIT_CODE = re.compile(r"^\s*exitcode\s+: (-?\d+)\s+\(pid: (\d+)\)")
# Written before torchrun itself kills a rank that did not end within its 30 s.
_FORCED = re.compile(r"Unable to shutdown process (\d+) via ")


@dataclass(frozen=True)
class RankDeath:
    """How one rank ended.

    Attributes:
        exit_code: as `Popen.returncode`: negative for a signal.
        forced: torchrun killed it, because another rank had failed and this one did not end.
    """

    rank: int
    exit_code: int
    forced: bool

    @property
    def signal(self) -> signal.Signals | None:
        """The signal that ended it, where it was one."""
        return signal.Signals(-self.exit_code) if -self.exit_code in set(signal.Signals) else None


def rank_deaths(log_lines: Iterable[str]) -> tuple[RankDeath, ...]:
    """Every rank that torchrun reports as failed, the one that it saw first at the front; empty without a report."""
    deaths: list[RankDeath] = []
    forced: set[int] = set()
    rank: int | None = None
    for line in log_lines:
        if found := _FORCED.search(line):
            forced.add(int(found[1]))
        elif found := _RANK.match(line):
            rank = int(found[1])
        elif rank is not None and (found := _EXIT_CODE.match(line)):
            deaths.append(RankDeath(rank, int(found[1]), forced=int(found[2]) in forced))
            rank = None
    # The report ends with the rank that failed first.
    return tuple(reversed(deaths))


def killed_rank(deaths: Iterable[RankDeath]) -> RankDeath | None:
    """The rank that somebody ended with SIGKILL; torchrun's own SIGKILL, after another failure, does not count."""
    return next((death for death in deaths if death.signal is signal.SIGKILL and not death.forced), None)
