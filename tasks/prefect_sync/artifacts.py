"""Shows tables, plots and links on the pages of Prefect; while Prefect is away they wait; outside a run is no page.

A key names what is shown and is the stage's name where a stage shows it: what the same task shows again under a key
replaces it, and what other runs show under it is its history.
"""

from collections.abc import Callable
from pathlib import Path

from prefect.context import FlowRunContext, TaskRunContext

from containers.contracts.digests import read_manifest
from containers.contracts.names import CURVES_FILE, TRAINING_INFO_FILE, StageName
from containers.contracts.records import StageRecord, TrainingInfo
from containers.contracts.spec import ArtifactRef
from containers.formatting import markdown_text
from containers.host.environment_block import without_secrets
from tasks.pages.curves import curve_plots
from tasks.pages.markdown import training_markdown
from tasks.prefect_sync.api import PrefectApi, PrefectAwayError
from tasks.prefect_sync.ledger import JsonObject
from tasks.prefect_sync.link import present_link
from tasks.run.provenance import find_maker
from tasks.run.state import PipelineRun
from tasks.store.events import read_points


def show_markdown(key: str, markdown: str, *, description: str) -> None:
    """Attach `markdown` to the present run, without secrets. A lost server never fails the stage."""
    _show(artifact_of_present_run("markdown", key, without_secrets(markdown), description=description))


def show_link(key: str, address: str, *, text: str, description: str) -> None:
    """Attach a link to the present run; an empty address is none."""
    if address:
        show_markdown(key, f"[{markdown_text(text)}]({address})", description=description)


def mlflow_page_shown(run: PipelineRun) -> Callable[[], None]:
    """Attaches a link to the run's page in MLflow to the present flow run, whenever it is called."""
    # Where this is called counts: inside a task the link would be the task's.
    artifact = artifact_of_present_run(
        "markdown", "mlflow", "", description="Every stage with its curves, parameters and files"
    )

    def show() -> None:
        address = run.tracking.run_url(run.mlflow_run_id)
        if artifact is not None and address:
            _show({**artifact, "data": f"[The run in MLflow]({address})"})

    return show


def show_stage(run: PipelineRun, stage: StageName, markdown: str, *, description: str) -> None:
    """Attach what a stage has to say, below a line that says who made it and where MLflow has the rest."""
    show_markdown(page_key(stage), f"{stage_links(run, stage)}\n\n{markdown}".lstrip(), description=description)


def show_training(run: PipelineRun, artifact: ArtifactRef) -> None:
    """Attach the curves and figures of a training stage to the present run."""
    folder = Path(artifact.path)
    info = TrainingInfo.model_validate_json((folder / TRAINING_INFO_FILE).read_bytes())
    plots = curve_plots(artifact.stage, read_points(folder / CURVES_FILE))
    show_stage(
        run,
        artifact.stage,
        training_markdown(info, read_manifest(folder).metrics, plots=plots),
        description=f"{info.algorithm}, {info.num_steps:,} steps",
    )


def stage_links(run: PipelineRun, stage: StageName) -> str:
    """Markdown: that the stage was reused, and who made it; the stage's run in MLflow. May be empty."""
    record = run.record_of(stage)
    if record is None:
        return ""
    reused = (
        f"↺ Reused: {markdown_text(record.message)}. {_maker_link(run, record)}" if record.status == "reused" else ""
    )
    return "\n\n".join(part for part in (reused, mlflow_link(run, record.mlflow_run_id)) if part)


def mlflow_link(run: PipelineRun, mlflow_run_id: str) -> str:
    """Markdown link to a stage's run; empty where it has no page yet."""
    address = run.tracking.run_url(mlflow_run_id) if mlflow_run_id else ""
    return f"[This stage in MLflow: curves, parameters, files]({address})" if address else ""


def prefect_link(run: PipelineRun) -> str:
    """Markdown link to the flow run; empty outside of one."""
    return f"[The run in Prefect]({run.prefect_url})" if run.prefect_url else ""


def page_key(stage: StageName) -> str:
    """The key under which a stage shows what it has to say."""
    return stage.value.replace("_", "-")


def present_flow_run_id() -> str:
    """Prefect's id of the present flow run; empty outside of one."""
    context = FlowRunContext.get()
    return str(context.flow_run.id) if context and context.flow_run else ""


def artifact_of_present_run(kind: str, key: str, data: str | float, *, description: str) -> JsonObject | None:
    """The artifact as Prefect takes it; None outside a flow run."""
    flow_run_id, task = present_flow_run_id(), TaskRunContext.get()
    if not flow_run_id:
        return None
    artifact: JsonObject = {
        "type": kind,
        "key": key,
        "description": description,
        "data": data,
        "flow_run_id": flow_run_id,
    }
    if task is not None:
        artifact["task_run_id"] = str(task.task_run.id)
    return artifact


def _maker_link(run: PipelineRun, record: StageRecord) -> str:
    """Markdown link to the flow run that made what was reused, where this server knows it."""
    flow_run_id = find_maker(run.attempt_folder(record.stage, record.key, attempt=1).parent).flow_run_id
    pages, _, present = run.prefect_url.rpartition("/")
    if not flow_run_id or not present:
        return ""
    try:
        with PrefectApi() as api:
            return f"[That run]({pages}/{flow_run_id})" if api.flow_run(flow_run_id) else ""
    except PrefectAwayError:
        return ""


def _show(artifact: JsonObject | None) -> None:
    link = present_link()
    if link is not None and artifact is not None:
        link.show(artifact)
