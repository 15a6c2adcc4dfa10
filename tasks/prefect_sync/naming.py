"""Names and tags of the present run in Prefect and MLflow. A server that is away does no harm."""

import logging
from collections.abc import Callable, Iterable

from tasks.prefect_sync.api import PrefectApi, PrefectAwayError, present_flow_run
from tasks.prefect_sync.artifacts import mlflow_page_shown, prefect_link, present_flow_run_id
from tasks.prefect_sync.link import present_link
from tasks.run.state import PipelineRun
from tasks.sources.labels import corrected_name

logger = logging.getLogger(__name__)


def introduce_run(run: PipelineRun, tags: Iterable[str]) -> None:
    """Tag the present flow run, and link its page and the run's page in MLflow to each other."""
    run.tracking.set_note(run.mlflow_run_id, prefect_link(run))
    run.tracking.once_up(mlflow_page_shown(run))
    flow_run_id = present_flow_run_id()
    if flow_run_id:
        _tell(lambda api: api.tag_flow_run(flow_run_id, tags))


def correct_name(run: PipelineRun, guessed: str, known: str) -> None:
    """Replace the guessed part of the run's name by the known one: `@main` becomes `@2f1a`."""
    run.tracking.correct_name(guessed, known)
    flow_run = present_flow_run()
    if flow_run is None:
        return
    name = corrected_name(flow_run.name, guessed=guessed, known=known)
    if name == flow_run.name:
        return
    _tell(lambda api: api.rename_flow_run(str(flow_run.id), name))
    flow_run.name = name


def _tell(say: Callable[[PrefectApi], None]) -> None:
    link = present_link()
    if link is None:
        return
    try:
        say(link.api)
    except PrefectAwayError as error:
        logger.warning("Prefect does not show the run's name and tags: %s", error)
