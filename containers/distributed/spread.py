"""Spread the forwards of an evaluation over all GPUs of its stage: a program on each further GPU holds the model too.

The stage stays one program. It cuts its work into the same batches as on one GPU and deals these out, so results do
not depend on the number of GPUs.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Pipe, wait
from typing import Any, Generic, TypeVar

import torch

from containers.contracts.programs import PACKAGE
from containers.distributed import spread_worker
from containers.harness.errors import StageError
from containers.harness.gpu_shares import ROLLOUT_GPUS_VARIABLE

Made = TypeVar("Made")
Item = TypeVar("Item")
Value = TypeVar("Value")

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_END_S = 10.0


class Spread(Generic[Made]):
    """Programs that hold what `make` makes, one for each further GPU; they end with this process.

    Args:
        make: a function at the top of a module; called in each program with `arguments` and its `device`.
        arguments: can be pickled.
        gpus: for CUDA_VISIBLE_DEVICES of each program; an empty text is the CPU.

    Raises:
        StageError: a program cannot make it; says why.
    """

    def __init__(self, make: Callable[..., Made], arguments: Mapping[str, Any], *, gpus: Sequence[str]) -> None:
        self._programs = [_Program(gpu) for gpu in gpus]
        try:
            for program in self._programs:
                program.send((make, dict(arguments)))
            for program in self._programs:
                program.receive()
        except BaseException:
            self.close()
            raise

    def map(
        self,
        own: Made,
        work: Callable[[Made, list[Item]], list[Value]],
        items: Sequence[Item],
        *,
        sizes: Sequence[int],
        on_done: Callable[[int], None] = lambda count: None,
    ) -> list[Value]:
        """Return the value of each item, in order; `own` works here while the programs work on their shares.

        Args:
            own: what `make` makes, on this process's GPU.
            work: a function at the top of a module: one value for each of the items.
            sizes: how much work each item is; the largest are dealt out first.
            on_done: called with the number of items that are done so far.

        Raises:
            StageError: a program failed or died.
        """
        shares = _shares(sizes, len(self._programs) + 1)
        found: dict[int, Value] = {}

        def note(places: Sequence[int], values: Sequence[Value]) -> None:
            found.update(zip(places, values, strict=True))
            on_done(len(found))

        asked = [(program, share) for program, share in zip(self._programs, shares[1:], strict=True) if share]
        for program, share in asked:
            program.send((work, [items[place] for place in share]))
        for place in shares[0]:
            note([place], work(own, [items[place]]))
        waiting = {program.connection: (program, share) for program, share in asked}
        while waiting:
            for connection in wait(list(waiting)):
                program, share = waiting.pop(connection)  # type: ignore[call-overload]
                note(share, program.receive())
        return [found[place] for place in range(len(items))]

    def close(self) -> None:
        """End the programs, and give their GPUs' memory back."""
        for program in self._programs:
            program.close()
        self._programs = []


class _Program:
    """A program on one GPU, and the pipe to it."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self.connection, theirs = Pipe()
        environment = {name: value for name, value in os.environ.items() if name != ROLLOUT_GPUS_VARIABLE}
        environment |= {_VISIBLE: gpu, "PYTHONPATH": str(PACKAGE.parent)}
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
            StageError: it failed or died.
            torch.OutOfMemoryError: its GPU is full.
        """
        where = f"The program on GPU {self._gpu}" if self._gpu else "The program on the CPU"
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError) as error:
            raise StageError(f"{where} ended with exit code {self._process.wait()}.") from error
        if kind == spread_worker.FULL:
            raise torch.OutOfMemoryError(f"{where}: {value}")
        if kind == spread_worker.FAILED:
            raise StageError(f"{where} failed: {value}")
        return value

    def close(self) -> None:
        """End it: it ends by itself when its pipe is closed, and is killed if it does not."""
        self.connection.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def further_gpus() -> list[str]:
    """GPUs of the stage beside this process's own; empty with one GPU, or none."""
    return [name for name in os.environ.get(ROLLOUT_GPUS_VARIABLE, "").split(",") if name]


def spread_over_gpus(make: Callable[..., Made], arguments: Mapping[str, Any]) -> Spread[Made] | None:
    """Start a program on each further GPU of the stage; None if there is none."""
    gpus = further_gpus()
    return Spread(make, arguments, gpus=gpus) if gpus else None


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Deal the places out: the largest first, each to the share with the least so far."""
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for place in sorted(range(len(sizes)), key=lambda place: sizes[place], reverse=True):
        least = totals.index(min(totals))
        shares[least].append(place)
        totals[least] += sizes[place]
    return shares
