"""What SIGTERM means to a stage: the end at once, or in a training the end after the step, with a checkpoint."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from containers.contracts.names import RANK_FAILURES

_STOPPED = "The stage was stopped (SIGTERM). Start it again and it goes on from its last checkpoint."


class StageCancelledError(BaseException):
    """SIGTERM arrived: somebody stopped the stage in good order.

    Not an Exception, so that no code that is loading a file or a model at that moment takes it for a fault of that.
    """

    def __init__(self, message: str = _STOPPED) -> None:
        super().__init__(message)


class StopSignal:
    """Answers SIGTERM with StageCancelledError, raised at once wherever the stage is.

    Inside `after_step` the first SIGTERM only sets `requested`: the training then stops where it can be resumed. At
    once all the same: at a second one; where the orchestrator died, for its successor may start this stage again any
    moment; and where another rank failed, for no step can be finished without it.

    Args:
        work: the stage's work folder, where failed ranks leave their word.
        rank: None where this process was started by the orchestrator, not by torchrun.
    """

    def __init__(self, work: Path | None = None, *, rank: int | None = None) -> None:
        self.requested = False
        self._patient = self._over = False
        self._work = work
        # torchrun takes the place of the process that the orchestrator started, so it stands between.
        self._num_ancestors = 1 if rank is None else 2
        self._ancestors = _ancestors(self._num_ancestors)

    def listen(self) -> None:
        """Answer SIGTERM from now on. Main thread only."""
        signal.signal(signal.SIGTERM, self._received)

    def end(self) -> None:
        """The stage is over and writes its outcome: nothing stops it any more but SIGKILL."""
        self._over = True

    @contextmanager
    def after_step(self) -> Iterator[None]:
        """Whoever is inside looks at `requested` after each step.

        Raises:
            StageCancelledError: at the end of the block, where it was requested and nobody looked.
        """
        self._patient = True
        try:
            yield
        finally:
            self._patient = False
        if self.requested:
            raise StageCancelledError

    def _received(self, signum: int, frame: FrameType | None) -> None:
        if self._over:
            return
        if self._patient and not self.requested and self._step_can_end():
            self.requested = True
            return
        raise StageCancelledError

    def _step_can_end(self) -> bool:
        failed = self._work is not None and any(self._work.glob(RANK_FAILURES))
        return not failed and _ancestors(self._num_ancestors) == self._ancestors


def _ancestors(count: int) -> tuple[int, ...]:
    """Process ids of parent, its parent, and so on; shorter where the system does not tell."""
    found = [os.getppid()]
    while len(found) < count:
        try:
            stat = Path(f"/proc/{found[-1]}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        # The name, in brackets, may hold anything; behind it come state and parent.
        found.append(int(stat.rpartition(")")[2].split()[1]))
    return tuple(found)
