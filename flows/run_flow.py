"""Run the flow once and return how the pipeline ended, even if the Prefect server fails meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    """How the pipeline ended.

    Attributes:
        error: None if every stage ran and every gate opened.
        prefect_knows: whether Prefect shows this end.
    """

    error: BaseException | None
    prefect_knows: bool


def import_flow() -> None:
    """Import now what `rlhf run` needs: Prefect, MLflow's client and the flow."""
    import mlflow  # noqa: F401
    import prefect.flow_engine
    import prefect.task_engine  # noqa: F401

    import flows.rlhf  # noqa: F401


def how_it_ends(start: Callable[[], object]) -> Ended:
    """Run `start` and return how the pipeline ended; Prefect's errors about its server do not count."""
    from prefect.logging.handlers import APILogHandler

    from tasks.prefect_sync.link import take_last_end

    seen: BaseException | None = None
    try:
        start()
    except BaseException as error:  # also Prefect's exception for SIGTERM
        seen = error
    end = take_last_end()
    ended = Ended(seen, prefect_knows=True) if end is None else Ended(end.error, prefect_knows=end.told())
    if ended.prefect_knows:
        APILogHandler().flush()  # before the server stops
    return ended
