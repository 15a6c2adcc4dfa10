"""What SIGTERM means to a stage: the end at once, or in a training the end after the step, with a checkpoint."""

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

# So long that the callback which swallowed the exception has returned.
_AGAIN_AFTER_S = 0.05
_STOPPED = "The stage was stopped (SIGTERM). Start it again and it goes on from its last checkpoint."


class StageCancelledError(BaseException):
    """SIGTERM arrived: somebody stopped the stage in good order.

    Not an Exception, so that no code that is loading a file or a model at that moment takes it for a fault of that.
    """

    def __init__(self, message: str = _STOPPED) -> None:
        super().__init__(message)


def stopped_by(error: BaseException) -> BaseException:
    """The stop behind an error, where there is one, else the error.

    A C extension that is being loaded turns whatever is raised in it into an ImportError of its own.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, StageCancelledError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error


class StopSignal:
    """Answers SIGTERM with StageCancelledError, raised at once wherever the stage is.

    Inside `after_step` the first SIGTERM only sets `requested`: the training then stops where it can be resumed. At
    once all the same: at a second one; and where another rank failed, for no step can be finished without it.

    Args:
        work: the stage's work folder, where failed ranks leave their word.
    """

    def __init__(self, work: Path | None = None) -> None:
        self.requested = False
        self._patient = self._over = False
        self._work = work

    def listen(self) -> None:
        """Answer SIGTERM from now on. Main thread only."""
        signal.signal(signal.SIGTERM, self._received)
        sys.unraisablehook = _sent_again_where_swallowed(sys.unraisablehook)

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
        return self._work is None or not any(self._work.glob(RANK_FAILURES))


def _sent_again_where_swallowed(before: Callable[[Any], object]) -> Callable[[Any], object]:
    """A hook that sends SIGTERM again where its exception was raised inside a finalizer.

    Python drops what is raised in `__del__` and in the callbacks of weak references, which run wherever the last
    reference goes, as at the end of each import: the stage would go on as if nobody had stopped it.
    """

    def hook(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, StageCancelledError):
            again = threading.Timer(_AGAIN_AFTER_S, os.kill, (os.getpid(), signal.SIGTERM))
            again.daemon = True
            again.start()
        else:
            before(unraisable)

    return hook
