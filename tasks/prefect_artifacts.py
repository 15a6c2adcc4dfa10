"""Shows tables on the task run's page in Prefect; while Prefect is away, they wait; outside a run there is no page."""

from pathlib import Path

from prefect.context import FlowRunContext, TaskRunContext

from containers.contracts.names import TRAINING_INFO_FILE
from containers.contracts.records import TrainingInfo
from containers.contracts.spec import ArtifactRef
from containers.digests import read_manifest
from tasks.markdown import training_markdown
from tasks.prefect_ledger import JsonObject
from tasks.prefect_link import present_link


def show_markdown(key: str, markdown: str, *, description: str) -> None:
    """Attach `markdown` to the present run; the same key keeps its history. A lost server never fails the stage."""
    flow, task, link = FlowRunContext.get(), TaskRunContext.get(), present_link()
    if link is None or flow is None or flow.flow_run is None:
        return
    artifact: JsonObject = {
        "type": "markdown",
        "key": key,
        "description": description,
        "data": markdown,
        "flow_run_id": str(flow.flow_run.id),
    }
    if task is not None:
        artifact["task_run_id"] = str(task.task_run.id)
    link.show(artifact)


def show_training(artifact: ArtifactRef) -> None:
    """Attach the figures of a training stage to the present run."""
    folder = Path(artifact.path)
    info = TrainingInfo.model_validate_json((folder / TRAINING_INFO_FILE).read_bytes())
    show_markdown(
        artifact.stage.value.replace("_", "-"),
        training_markdown(info, read_manifest(folder).metrics),
        description=f"{info.algorithm}, {info.num_steps} steps",
    )
