"""Programs that hold one model, alone or together, and the pipes to them; `containers.distributed.spread` uses them."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import torch

from containers.contracts.programs import PACKAGE
from containers.distributed import spread_worker
from containers.distributed.spread_worker import Membership
from containers.harness.errors import StageError
from containers.harness.gpu_shares import ROLLOUT_GPUS_VARIABLE

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Until programs that are idle have ended; and those of which one waits for another that failed.
END_S, FAILED_END_S = 10.0, 1.0
# After a member of a team failed: for so long its others may still answer, before they are taken to wait for it.
_REST_S = 30.0


class ProgramError(StageError, RuntimeError):
    """What a program was given to do failed there."""


class Team:
    """Programs that hold one model together; the first one's answer counts."""

    def __init__(self, gpus: Sequence[str], *, limit_s: int, advice: str) -> None:
        self._limit_s, self._advice = limit_s, advice
        self._folder = tempfile.TemporaryDirectory(prefix="team-")
        self._programs = [_Program(gpu) for gpu in gpus]
        self.connections = [program.connection for program in self._programs]
        self.leader: Connection = self.connections[0]
        self.is_asked = False
        self.is_broken = False

    def make(self, make: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """Have the programs join, and make their parts."""
        size, store = len(self._programs), str(Path(self._folder.name, "store"))
        for rank, program in enumerate(self._programs):
            member = Membership(store, rank, size, self._limit_s, self._advice) if size > 1 else None
            program.send((make, dict(arguments), member))
        self.is_asked = True

    def send(self, message: Any) -> None:
        """Send it to every member."""
        for program in self._programs:
            program.send(message)
        self.is_asked = True

    def answer(self) -> Any:
        """Return the first member's answer, when all have answered.

        Raises:
            ProgramError: all members failed, at the same; they can be used again.
            StageError: one died, failed alone, or refused, with its own kind.
        """
        self.is_asked = False
        found: dict[_Program, Any] = {}
        failures: list[StageError | torch.OutOfMemoryError] = []
        ends_by = float("inf")
        left = {program.connection: program for program in self._programs}
        while left and time.monotonic() < ends_by:
            ready = wait(list(left), timeout=max(0.0, ends_by - time.monotonic()) if failures else None)
            for connection in ready:
                program = left.pop(connection)  # type: ignore[call-overload]
                try:
                    found[program] = program.receive()
                except (StageError, torch.OutOfMemoryError) as error:
                    failures.append(error)
                    ends_by = min(ends_by, time.monotonic() + _REST_S)
        if not failures:
            return found[self._programs[0]]
        first = failures[0]
        if isinstance(first, ProgramError) and len(failures) < len(self._programs):
            # The next sums of the others could pair with those that this one has not done.
            self.is_broken = True
            raise StageError(f"{first} Programs that hold the model with it went on, or wait for it.") from first
        self.is_broken = self.is_broken or bool(left) or not isinstance(first, ProgramError)
        raise first

    def forget(self) -> None:
        """Wait for what was asked, whatever comes of it."""
        if self.is_asked:
            try:
                self.answer()
            except (StageError, torch.OutOfMemoryError):
                return

    def leave(self) -> None:
        """Wait for nothing that was asked: the programs are not used again."""
        self.is_broken = self.is_broken or self.is_asked

    def hang_up(self) -> None:
        """Close the pipes, at which the programs end."""
        for program in self._programs:
            program.connection.close()

    def end(self, ends_by: float) -> None:
        """Wait for the programs until that time of the clock, and kill those that are left."""
        for program in self._programs:
            program.end(ends_by)
        self._folder.cleanup()


class _Program:
    """A program on one GPU, and the pipe to it."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self.connection, theirs = Pipe()
        environment = {name: value for name, value in os.environ.items() if name != ROLLOUT_GPUS_VARIABLE}
        environment |= {VISIBLE: gpu, "PYTHONPATH": str(PACKAGE.parent)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", spread_worker.__name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
            )

    def send(self, message: Any) -> None:
        """Send it; a program that is gone is noticed where its answer is read."""
        try:
            self.connection.send(message)
        except OSError:
            return

    def receive(self) -> Any:
        """Return its answer.

        Raises:
            StageError: it failed or died; of a failure that says itself what to do, with its kind.
            torch.OutOfMemoryError: its GPU is full.
        """
        where = f"The program on GPU {self._gpu}" if self._gpu else "The program on the CPU"
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError) as error:
            raise StageError(f"{where} ended with exit code {self._process.wait()}.") from error
        if kind == spread_worker.FULL:
            raise torch.OutOfMemoryError(f"{where}: {value}")
        if kind == spread_worker.REFUSED:
            raise value
        if kind == spread_worker.FAILED:
            raise ProgramError(f"{where} failed: {value}")
        return value

    def end(self, ends_by: float) -> None:
        """Wait for its end, which comes by itself when its pipe is closed; kill it at that time of the clock."""
        try:
            self._process.wait(max(0.0, ends_by - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
