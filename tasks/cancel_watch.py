"""Notices that somebody cancelled the run in Prefect, from a thread of its own: nobody waits for the answer."""

import threading
from collections.abc import Callable

from prefect.client.schemas.objects import StateType

from tasks.prefect_api import PrefectAwayError

STOPS = (StateType.CANCELLING, StateType.CANCELLED)


class RunCancelledError(Exception):
    """Somebody cancelled the run; what it had finished stands."""


def never() -> bool:
    """For runs that nobody can cancel from outside."""
    return False


class CancelWatch:
    """Asks for the run's own state every few seconds, until `close`.

    A server that does not answer cancels nothing; it is asked again. `is_away` says whether it did not answer last
    time, `was_away` whether that ever happened.

    Args:
        state: the run's state; None where the server has no such run. May raise PrefectAwayError, and may take long.
        on_return: called from the thread when the server answers again after it had not.
        every_s: pause between two questions.
    """

    def __init__(
        self,
        state: Callable[[], StateType | None],
        *,
        on_return: Callable[[], None] = lambda: None,
        every_s: float = 3.0,
    ) -> None:
        self.is_away = False
        self.was_away = False
        self._state = state
        self._on_return = on_return
        self._every_s = every_s
        self._cancelled = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="cancel-watch", daemon=True)
        self._thread.start()

    def note_away(self) -> None:
        """Somebody else got no answer: `on_return` is due with the next one."""
        self.is_away = self.was_away = True

    def should_stop(self) -> bool:
        """Whether the run was cancelled; answers at once."""
        return self._cancelled.is_set()

    def close(self) -> None:
        """Ask no more. A question that is under way is not waited for."""
        self._closing.set()

    def _work(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                if self._state() in STOPS:
                    self._cancelled.set()
                    return
            except PrefectAwayError:
                self.note_away()
                continue
            if self.is_away:
                self.is_away = False
                self._on_return()
