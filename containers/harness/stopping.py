"""Handle SIGTERM in a stage: stop at once, or, in a training, stop after the step and save a checkpoint."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from containers.contracts.names import RANK_FAILURES

# Long enough that the callback which swallowed the exception has returned.
_AGAIN_AFTER_S = 0.05
_STOPPED = "The stage was stopped (SIGTERM). Start it again and it goes on from its last checkpoint."


class StageCancelledError(BaseException):
    """SIGTERM arrived: the stage shall stop.

    Not an Exception, so that code which loads a file or a model does not take it for an error of the file.
    """

    def __init__(self, message: str = _STOPPED) -> None:
        super().__init__(message)


def stopped_by(error: BaseException) -> BaseException:
    """The StageCancelledError behind an error, if there is one, else the error.

    A C extension that is being loaded turns any exception into its own ImportError.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, StageCancelledError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error


class StopSignal:
    """Answers SIGTERM with StageCancelledError, raised at once wherever the stage is.

    Inside `after_step` the first SIGTERM only sets `requested`: the training then stops where it can be resumed. It
    still stops at once at a second SIGTERM, or if another rank failed, since no step can finish without that rank.

    Args:
        work: the stage's work folder, where failed ranks write their failure.
    """

    def __init__(self, work: Path | None = None) -> None:
        self.requested = False
        self._patient = self._over = False
        self._work = work

    def listen(self) -> None:
        """Handle SIGTERM from now on. Main thread only."""
        signal.signal(signal.SIGTERM, self._received)
        sys.unraisablehook = _sent_again_where_swallowed(sys.unraisablehook)

    def end(self) -> None:
        """Ignore SIGTERM from now on: the stage has ended and writes its outcome."""
        self._over = True

    @contextmanager
    def after_step(self) -> Iterator[None]:
        """Delay SIGTERM in the block: its code checks `requested` after each step.

        Raises:
            StageCancelledError: at the end of the block, if a stop was requested.
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
        return self._work is None or not any(self._work.glob(RANK_FAILURES))


def _sent_again_where_swallowed(before: Callable[[Any], object]) -> Callable[[Any], object]:
    """A hook that sends SIGTERM again if its exception was raised inside a finalizer.

    Python drops exceptions in `__del__` and in callbacks of weak references. These run where the last reference ends,
    as at the end of each import; without this hook the stage would ignore the SIGTERM.
    """

    def hook(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, StageCancelledError):
            again = threading.Timer(_AGAIN_AFTER_S, os.kill, (os.getpid(), signal.SIGTERM))
            again.daemon = True
            again.start()
        else:
            before(unraisable)

    return hook
