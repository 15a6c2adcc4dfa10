"""Show a stage's results in Prefect: artifacts, assets, the certificate."""

from collections.abc import Callable
from pathlib import Path

from prefect.context import TaskRunContext
from prefect.events import emit_event

from containers.contracts.certificate import Certificate
from containers.contracts.digests import read_manifest
from containers.contracts.evidence import Evidence
from containers.contracts.names import (
    CERTIFICATE_FILE,
    CERTIFICATE_PAGE_FILE,
    CURVES_FILE,
    EVIDENCE_FILE,
    TRAINING_INFO_FILE,
    StageName,
)
from containers.contracts.records import GateVerdict, StageRecord, TrainingInfo
from containers.contracts.spec import ArtifactRef, StageInput
from containers.document.markdown import markdown
from containers.document.model import Block, Note
from containers.formatting import markdown_text, number
from containers.host.environment_block import without_secrets
from containers.report.certificate_page import certificate_sections
from containers.report.curves import read_curves
from containers.report.training import training_section
from tasks.prefect_sync.api import PrefectApi, PrefectAwayError, present_flow_run
from tasks.prefect_sync.ledger import JsonObject
from tasks.prefect_sync.link import present_link
from tasks.run.provenance import find_maker
from tasks.run.state import PipelineRun

# Stages whose output other stages read; evaluations and reports are none.
_ASSETS = frozenset(
    {
        StageName.FILTER_DATASET,
        StageName.BUILD_BASE_MODEL,
        StageName.TRAIN_SFT,
        StageName.TRAIN_REWARD_MODEL,
        StageName.TRAIN_DPO,
        StageName.TRAIN_POLICY,
    }
)
KEY = "certificate"


def show_markdown(key: str, markdown: str, *, description: str) -> None:
    """Attach `markdown` to the present run, without secrets. A lost server never fails the stage."""
    _show(artifact_of_present_run("markdown", key, without_secrets(markdown), description=description))


def show_blocks(key: str, *blocks: Block, description: str) -> None:
    """Attach the blocks of a document to the present run."""
    show_markdown(key, markdown(*blocks), description=description)


def mlflow_page_shown(run: PipelineRun) -> Callable[[], None]:
    """Return a function that attaches a link to the run's MLflow page to the present flow run."""
    # Call this outside of tasks: inside a task the link would be the task's.
    artifact = artifact_of_present_run(
        "markdown", "mlflow", "", description="Every stage with its curves, parameters and files"
    )

    def show() -> None:
        address = run.tracking.run_url(run.mlflow_run_id)
        if artifact is not None and address:
            _show({**artifact, "data": f"[The run in MLflow]({address})"})

    return show


def gpu_hours_shown() -> Callable[[float, float], None]:
    """Return a function that shows on the page of the present flow run how many of its GPU hours are taken."""
    # Call this outside of tasks, as `mlflow_page_shown`.
    artifact = artifact_of_present_run("progress", "gpu-hours", 0.0, description="")
    shown = -1.0

    def show(taken: float, limit: float) -> None:
        nonlocal shown
        share = round(min(100.0, 100 * taken / limit), 1)
        if artifact is not None and share != shown:
            shown = share
            _show({**artifact, "data": share, "description": f"{number(taken)} of {number(limit)} GPU hours taken"})

    return show


def show_stage(run: PipelineRun, stage: StageName, *blocks: Block | str, description: str) -> None:
    """Attach a stage's page, below links to the run that made a reused stage and to the stage in MLflow.

    Args:
        blocks: a text among them is Markdown.
    """
    parts = (block if isinstance(block, str) else markdown(block) for block in blocks)
    text = "\n\n".join((stage_links(run, stage), *parts)).lstrip()
    show_markdown(page_key(stage), text, description=description)


def show_training(run: PipelineRun, artifact: ArtifactRef) -> None:
    """Attach the curves and figures of a training stage to the present run."""
    folder = Path(artifact.path)
    info = TrainingInfo.model_validate_json((folder / TRAINING_INFO_FILE).read_bytes())
    curves, metrics = read_curves(folder / CURVES_FILE), read_manifest(folder).metrics
    shown = training_section(artifact.stage, info, curves, metrics, Evidence.read_if_valid(folder / EVIDENCE_FILE))
    show_stage(run, artifact.stage, shown, description=f"{info.algorithm}, {info.num_steps:,} steps")


def stage_links(run: PipelineRun, stage: StageName) -> str:
    """Return Markdown with the links of a stage: the run that made it if it was reused, MLflow. May be empty."""
    record = run.record_of(stage)
    if record is None:
        return ""
    reused = (
        f"↺ Reused: {markdown_text(record.message)}. {_maker_link(run, record)}" if record.status == "reused" else ""
    )
    return "\n\n".join(part for part in (reused, mlflow_link(run, record.mlflow_run_id)) if part)


def mlflow_link(run: PipelineRun, mlflow_run_id: str) -> str:
    """Return a Markdown link to a stage's run; empty if it has no page yet."""
    address = run.tracking.run_url(mlflow_run_id) if mlflow_run_id else ""
    return f"[This stage in MLflow: curves, parameters, files]({address})" if address else ""


def prefect_link(run: PipelineRun) -> str:
    """Return a Markdown link to the flow run; empty outside of one."""
    return f"[The run in Prefect]({run.prefect_url})" if run.prefect_url else ""


def page_key(stage: StageName) -> str:
    """Return the key of a stage's page in Prefect."""
    return stage.value.replace("_", "-")


def present_flow_run_id() -> str:
    """Return Prefect's id of the present flow run; empty outside of one."""
    flow_run = present_flow_run()
    return str(flow_run.id) if flow_run else ""


def artifact_of_present_run(kind: str, key: str, data: str | float, *, description: str) -> JsonObject | None:
    """Return the artifact as Prefect takes it; None outside a flow run."""
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
    """Return a Markdown link to the flow run that made a reused stage; empty if this server lacks it."""
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


def tell_asset(run: PipelineRun, artifact: ArtifactRef, inputs: tuple[StageInput, ...]) -> None:
    """Report to Prefect that the stage made this of those inputs; only in a flow run, and only for `_ASSETS`."""
    if present_link() is None or artifact.stage not in _ASSETS:
        return
    sources = [_input_key(run, item) for item in inputs]
    for source in sources:
        emit_event(event="prefect.asset.referenced", resource={"prefect.resource.id": source})
    emit_event(
        event="prefect.asset.materialization.succeeded",
        resource={"prefect.resource.id": _key(run, artifact.stage), "prefect.resource.name": artifact.stage.value},
        related=[{"prefect.resource.id": source, "prefect.resource.role": "asset"} for source in sources],
        payload={"key": artifact.key, "digest": artifact.digest, "path": artifact.path, "run": run.run_id},
    )


def _key(run: PipelineRun, stage: str) -> str:
    return f"rlhf://{run.config.run.name}/{stage}"


def _input_key(run: PipelineRun, item: StageInput) -> str:
    """Return the asset of the stage that made an input, else its origin: a hub id or a path of this machine."""
    maker = item.origin.partition(" ")[0]
    if maker in set(StageName):
        return _key(run, maker)
    return f"hub://{maker.partition('@')[0]}" if item.digest.startswith("hub:") else f"file://{item.path}"


def certificate_blocks(run: PipelineRun, certificate: Certificate, verdict: GateVerdict) -> tuple[Block, ...]:
    """Return everything that was measured of a reward model, with its gate and the plots of the held-out pairs.

    If the certificate was made in this run, a link to its page in MLflow comes first.
    """
    record = run.record_of(StageName.EVALUATE_REWARD_MODEL)
    page = ""
    if record is not None and record.status == "ran":
        page = run.tracking.file_url(record.mlflow_run_id, f"output/{CERTIFICATE_PAGE_FILE}")
    link = (Note("The certificate as a page", link=page),) if page else ()
    return (*link, *certificate_sections(certificate, verdict, num_plotted=1))


def show_certificate(run: PipelineRun) -> None:
    """Attach the run's certificate, if it has one."""
    verdict = next((found for found in reversed(run.gates) if found.certificate is not None), None)
    if verdict is None or verdict.certificate is None:
        return
    folder = Path(verdict.certificate.path)
    certificate = Certificate.model_validate_json((folder / CERTIFICATE_FILE).read_bytes())
    where = Note(f"The certificate's page, on the machine of this run: {folder / CERTIFICATE_PAGE_FILE}")
    shown = certificate_blocks(run, certificate, verdict)
    show_blocks(KEY, where, *shown, description="The certificate, its gate, its page")
