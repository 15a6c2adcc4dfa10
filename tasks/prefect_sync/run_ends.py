"""How a run ended, as Prefect shows it."""

from signal import Signals

from prefect.exceptions import TerminationSignal

from tasks.config.gates import GateWaitsError
from tasks.prefect_sync.cancellation import RunCancelledError
from tasks.prefect_sync.ledger import EndState

GOES_ON = "Nothing that was finished is lost: Retry, or the same command, goes on from the last good step."


def end_state(error: BaseException | None) -> EndState:
    """What Prefect calls the end of a run that ended with that error; None: it came to its end."""
    if error is None:
        return "COMPLETED"
    if isinstance(error, RunCancelledError):
        return "CANCELLED"
    if isinstance(error, GateWaitsError):
        return "COMPLETED"
    return "FAILED" if isinstance(error, Exception) else "CRASHED"


def end_in_words(error: BaseException | None) -> str:
    """The message beside that state; empty where there is nothing to say."""
    if error is None:
        return ""
    if isinstance(error, (GateWaitsError, RunCancelledError)):
        return str(error)
    if isinstance(error, TerminationSignal):
        return f"Stopped by {Signals(error.signal).name}. {GOES_ON}"
    return f"{type(error).__name__}: {error}".rstrip(": ")
