"""Shows tables on the task run's page in Prefect; outside a run, or when Prefect is away, it only logs."""

import logging
from pathlib import Path

from prefect.artifacts import create_markdown_artifact
from prefect.context import FlowRunContext, TaskRunContext

from containers.contracts.names import TRAINING_INFO_FILE
from containers.contracts.records import TrainingInfo
from containers.contracts.spec import ArtifactRef
from containers.digests import read_manifest
from tasks.markdown import training_markdown

logger = logging.getLogger(__name__)


def show_markdown(key: str, markdown: str, *, description: str) -> None:
    """Attach `markdown` to the present run; the same key keeps its history. A lost server never fails the stage."""
    if FlowRunContext.get() is None and TaskRunContext.get() is None:
        return
    try:
        create_markdown_artifact(key=key, markdown=markdown, description=description)
    except Exception as error:  # a table that cannot be shown must not cost GPU hours
        logger.warning("Prefect could not show %s: %s", key, error)


def show_training(artifact: ArtifactRef) -> None:
    """Attach the figures of a training stage to the present run."""
    folder = Path(artifact.path)
    info = TrainingInfo.model_validate_json((folder / TRAINING_INFO_FILE).read_bytes())
    show_markdown(
        artifact.stage.value.replace("_", "-"),
        training_markdown(info, read_manifest(folder).metrics),
        description=f"{info.algorithm}, {info.num_steps} steps",
    )
