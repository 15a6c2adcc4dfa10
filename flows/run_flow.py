"""Runs the flow once and says how the pipeline ended, whatever becomes of the Prefect server meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass

from tasks.config.run import RunConfig


@dataclass(frozen=True)
class Ended:
    """How the pipeline ended.

    Attributes:
        error: None where every stage ran and every gate opened.
        prefect_knows: whether Prefect shows this end.
    """

    error: BaseException | None
    prefect_knows: bool


def import_flow() -> None:
    """What `run_flow` imports, now: Prefect, MLflow's client and the flow."""
    import mlflow  # noqa: F401
    import prefect.flow_engine
    import prefect.task_engine  # noqa: F401

    import flows.rlhf  # noqa: F401


def run_flow(config: RunConfig, *, command: str, config_yaml: str) -> Ended:
    """`rlhf` on that configuration, once."""
    from flows.rlhf import rlhf

    return how_it_ends(lambda: rlhf(config, command=command, config_yaml=config_yaml))


def how_it_ends(start: Callable[[], object]) -> Ended:
    """The pipeline's own end: an error of Prefect's about its server does not count as one."""
    from prefect.logging.handlers import APILogHandler

    from tasks.prefect_sync.link import take_last_end

    seen: BaseException | None = None
    try:
        start()
    except BaseException as error:  # also what Prefect makes of SIGTERM
        seen = error
    end = take_last_end()
    ended = Ended(seen, prefect_knows=True) if end is None else Ended(end.error, prefect_knows=end.told())
    if ended.prefect_knows:
        APILogHandler().flush()  # before the server goes
    return ended
