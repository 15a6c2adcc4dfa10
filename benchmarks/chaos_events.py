"""Faults for `benchmarks.chaos`: their order and times, from a seed, and how each is caused in a running pipeline."""

import errno
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.faults.mortal_server import MortalServer
from tests.faults.tiny_project import stage_processes

KILL_ORCHESTRATOR = "kill -9 of the orchestrator"
KINDS = (
    KILL_ORCHESTRATOR,
    "kill -9 of the stage program",
    "SIGSTOP of the stage program, SIGCONT later",
    "SIGSTOP of the orchestrator, SIGCONT later",
    "kill -9 of MLflow, started again later",
    "kill -9 of Prefect, started again later",
    "the disk is full, and freed later",
)
# Only the limit on silence ends this fault, which takes longer than all others together.
FOR_GOOD = "SIGSTOP of the stage program, for good"
ONE_RANK = "kill -9 of one rank"
DISK = KINDS[-1]
_FEWEST_S, _MOST_S = 0.5, 8.0
_BLOCK = bytes(64 * 1024)


@dataclass(frozen=True)
class Event:
    """One fault: `wait_s` after the recovery from the previous one; a temporary fault lasts `lasts_s`."""

    number: int
    kind: str
    wait_s: float
    lasts_s: float

    def __str__(self) -> str:
        lasts = f", for {self.lasts_s:.1f} s" if "later" in self.kind else ""
        return f"{self.number:>3}  after {self.wait_s:.1f} s  {self.kind}{lasts}"


def schedule(seed: int, kinds: tuple[str, ...]) -> Iterator[Event]:
    """Yield events without end, the same for the same seed and kinds; each round has every kind once."""
    drawn, number = random.Random(seed), 0  # noqa: S311 - to be repeated, not to be secret
    while True:
        for kind in drawn.sample(kinds, len(kinds)):
            number += 1
            yield Event(number, kind, drawn.uniform(_FEWEST_S, _MOST_S), drawn.uniform(_FEWEST_S, _MOST_S))


@dataclass
class Scene:
    """The targets of faults: the processes of a run, its servers, its disk."""

    orchestrator: Callable[[], psutil.Process | None]
    mlflow: MortalServer
    prefect: MortalServer
    disk: Path

    def put(self, event: Event) -> bool:
        """Cause the fault, and end it if it is temporary. False: the target does not exist at present."""
        if event.kind == DISK:
            with full(self.disk):
                time.sleep(event.lasts_s)
            return True
        if "MLflow" in event.kind or "Prefect" in event.kind:
            server = self.mlflow if "MLflow" in event.kind else self.prefect
            server.kill()
            time.sleep(event.lasts_s)
            server.start()
            return True
        return self._signal(event)

    def _signal(self, event: Event) -> bool:
        orchestrator = self.orchestrator()
        if orchestrator is None:
            return False
        victims = [orchestrator]
        with suppress(psutil.Error):
            if event.kind == ONE_RANK:
                # A process of torchrun; the event's number selects it.
                ranks = [process for process in stage_processes(orchestrator.pid) if "LOCAL_RANK" in process.environ()]
                victims = ranks[event.number % len(ranks) :][:1] if ranks else []
            elif "stage program" in event.kind:
                victims = list(stage_processes(orchestrator.pid))
            if not victims:
                return False
            _send(victims, signal.SIGKILL if event.kind.startswith("kill") else signal.SIGSTOP)
            if event.kind.endswith("later"):
                time.sleep(event.lasts_s)
                _send(victims, signal.SIGCONT)
            return True
        return False


def _send(victims: list[psutil.Process], number: signal.Signals) -> None:
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(number)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill the disk during the block."""
    filler = disk / "filler"
    try:
        with open(filler, "wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(_BLOCK)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        yield
    finally:
        filler.unlink(missing_ok=True)


def alive_below(folder: Path) -> list[str]:
    """Return processes that a run left: those with the folder in command line, environment or working directory."""
    found, needle = [], os.fsencode(folder)
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):  # noqa: PTH208 - it is no folder
        if pid == os.getpid():
            continue
        with suppress(OSError):
            place = Path("/proc") / str(pid)
            command, where = (place / "cmdline").read_bytes(), (place / "cwd").readlink()
            if any(needle in text for text in (command, (place / "environ").read_bytes(), os.fsencode(where))):
                found.append(f"{pid} {command.replace(bytes(1), b' ').decode(errors='replace').strip()}")
    return found
