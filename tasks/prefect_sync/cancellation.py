"""How a run ends: a thread notices that a user cancelled or deleted it in Prefect; each end has a state and a message.

A run that the server lacks counts as deleted only if the server's database once had it. A server that is away, or back
with another database, stops nothing.
"""

import threading
from collections.abc import Callable
from signal import Signals

from prefect.client.schemas.objects import StateType
from prefect.exceptions import TerminationSignal

from tasks.config.gates import PersonAwaitedError
from tasks.prefect_sync.api import PrefectApi, PrefectAwayError, present_flow_run
from tasks.prefect_sync.ledger import EndState

STOPS = (StateType.CANCELLING, StateType.CANCELLED)
CANCELLED = "The run was cancelled in Prefect."
DELETED = "The flow run was deleted in Prefect, so the run stopped as if it had been cancelled."
GOES_ON = "Nothing that was finished is lost: Retry, or the same command, goes on from the last good step."


def watch_for_cancel() -> tuple[Callable[[], bool], Callable[[], None]]:
    """Return `should_stop` and `close` of a watch on the present flow run; without a flow run both do nothing."""
    present = present_flow_run()
    if present is None:
        return never, lambda: None
    flow_run_id, api = str(present.id), PrefectApi()

    def state() -> StateType | None:
        flow_run = api.flow_run(flow_run_id)
        return None if flow_run is None else flow_run.state_type

    watch = CancelWatch(state, had_run=lambda: api.had_flow_run(flow_run_id))
    return watch.should_stop, watch.close


class RunCancelledError(Exception):
    """A user cancelled the run; what it had finished remains."""


def never() -> bool:
    """Return False: the run cannot be cancelled from outside."""
    return False


class CancelWatch:
    """Read the run's state every few seconds, until `close`.

    A server that does not answer cancels nothing; the watch tries again. `is_away` says whether it did not answer last
    time, `was_away` whether that ever happened.

    Args:
        state: the run's state; None if the server has no such run. May raise PrefectAwayError, and may take long.
        had_run: whether the server's database once had the run; called when it lacks the run. May raise as `state`.
        on_forgotten: called once from the thread if it never had the run: it is another database.
        on_return: called from the thread when the server answers again after it had not.
        every_s: pause between two requests.
    """

    def __init__(
        self,
        state: Callable[[], StateType | None],
        *,
        had_run: Callable[[], bool] = never,
        on_forgotten: Callable[[], None] = lambda: None,
        on_return: Callable[[], None] = lambda: None,
        every_s: float = 3.0,
    ) -> None:
        self.is_away = False
        self.was_away = False
        self.was_deleted = False
        self._state = state
        self._had_run = had_run
        self._on_forgotten = on_forgotten
        self._is_forgotten = False
        self._on_return = on_return
        self._every_s = every_s
        self._cancelled = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="cancel-watch", daemon=True)
        self._thread.start()

    def note_away(self) -> None:
        """Record that another caller got no answer; `on_return` follows the next answer."""
        self.is_away = self.was_away = True

    def should_stop(self) -> bool:
        """Whether the run was cancelled or deleted; does not wait."""
        return self._cancelled.is_set()

    @property
    def why(self) -> str:
        """The message why the run must stop."""
        return DELETED if self.was_deleted else CANCELLED

    def close(self) -> None:
        """Stop the watch. Does not wait for a request that is under way."""
        self._closing.set()

    def _work(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                if self._is_over(self._state()):
                    self._cancelled.set()
                    return
            except PrefectAwayError:
                self.note_away()
                continue
            if self.is_away:
                self.is_away = False
                self._on_return()

    def _is_over(self, state: StateType | None) -> bool:
        if state is not None:
            self._is_forgotten = False
            return state in STOPS
        self.was_deleted = self._had_run()
        if not self.was_deleted and not self._is_forgotten:
            self._is_forgotten = True
            self._on_forgotten()
        return self.was_deleted


def end_of(error: BaseException | None) -> tuple[EndState, str]:
    """Return Prefect's state for a run that ended with that error, and the message beside it; None: it came to its end.

    A run that waits at a gate has come to its end too.
    """
    if error is None:
        return "COMPLETED", ""
    if isinstance(error, PersonAwaitedError):
        return "COMPLETED", str(error)
    if isinstance(error, RunCancelledError):
        return "CANCELLED", str(error)
    if isinstance(error, TerminationSignal):
        return "CRASHED", f"Stopped by {Signals(error.signal).name}. {GOES_ON}"
    return "FAILED" if isinstance(error, Exception) else "CRASHED", f"{type(error).__name__}: {error}".rstrip(": ")
