"""Find evidence of how a stage ended: facts, last log lines, and torchrun's report about its ranks."""

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from containers.launch.base import StageExit

MAX_LOG_LINES = 40
MAX_LINE_CHARACTERS = 400
MAX_STATE_ENTRIES = 20
_RANK = re.compile(r"^\s*rank\s+: (\d+) \(local_rank: \d+\)")
_EXIT_CODE = re.compile(r"^\s*exitcode\s+: (-?\d+)\s+\(pid: (\d+)\)")
# Written before torchrun itself kills a rank that did not end within its 30 s.
_FORCED = re.compile(r"Unable to shutdown process (\d+) via ")


def exit_evidence(stage_exit: StageExit) -> tuple[str, ...]:
    """How the program ended, the runtime's facts about it, and its last log lines; at most 62 short lines."""
    code = "unknown" if stage_exit.exit_code is None else str(stage_exit.exit_code)
    facts = [f"exit code {code}", f"after {stage_exit.duration_s:.1f} s"]
    facts += [
        text
        for text, holds in (
            ("out of memory (kernel)", stage_exit.oom_killed),
            ("timed out", stage_exit.timed_out),
            ("cancelled", stage_exit.cancelled),
            ("lost", stage_exit.lost),
        )
        if holds
    ]
    if stage_exit.signal is not None:
        facts.append(f"signal {stage_exit.signal}")
    state = [f"{name}: {value}" for name, value in list(stage_exit.state.items())[:MAX_STATE_ENTRIES]]
    lines = stage_exit.log_tail[-MAX_LOG_LINES:]
    heading = [f"last {len(lines)} log lines:"] if lines else ["it wrote no log"]
    return tuple(_shortened(line) for line in (", ".join(facts), *state, *heading, *lines))


def _shortened(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARACTERS else f"{line[: MAX_LINE_CHARACTERS - 1]}…"


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
        """The signal that ended the rank; None where no signal did."""
        return signal.Signals(-self.exit_code) if -self.exit_code in set(signal.Signals) else None


def rank_deaths(log_lines: Iterable[str]) -> tuple[RankDeath, ...]:
    """Every rank that torchrun reports as failed, the first failure first; empty without a report."""
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
    """The first rank that SIGKILL ended; torchrun's own SIGKILL, after another failure, does not count."""
    return next((death for death in deaths if death.signal is signal.SIGKILL and not death.forced), None)
