"""write_report: one self-contained page that says what ran and how good it is."""

import shutil
from pathlib import Path

from containers.contracts.champions import DECISIONS_INPUT
from containers.contracts.configs.write_report import WriteReportConfig
from containers.contracts.digests import file_sha256, write_atomically
from containers.contracts.names import (
    CERTIFICATE_PAGE_FILE,
    REPORT_HTML_FILE,
    REPORT_INPUT_FILE,
    REPORT_MARKDOWN_FILE,
    StageName,
)
from containers.contracts.pipeline import STAGE_FACTS
from containers.contracts.records import PipelineRecord
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.champions.run_decisions import decisions_file, report_folder
from tasks.pipeline.inputs import artifact_input
from tasks.pipeline.run_stage import run_stage
from tasks.pipeline.stage_task import StageTask
from tasks.pipeline.standing_report import last_record
from tasks.prefect_sync.artifacts import show_markdown
from tasks.run.changes import changes_since
from tasks.run.state import PipelineRun


@StageTask
def write_report(run: PipelineRun, config: WriteReportConfig, *, after: object = None) -> Path:
    """Write the report; return its path, `reports/<run id>/report.html` below the run's output folder.

    `after` exists only so that Prefect draws the edge from the last stage.
    """
    folder = report_folder(run)
    pipeline, decisions = folder / REPORT_INPUT_FILE, decisions_file(run)
    write_atomically(pipeline, _record(run).model_dump_json(indent=2))
    inputs = [_file_input("pipeline", pipeline, run)]
    if decisions.is_file():
        inputs.append(_file_input(DECISIONS_INPUT, decisions, run))
    for record in run.records:
        if record.path and record.stage is not StageName.WRITE_REPORT:
            made = ArtifactRef(stage=record.stage, key=record.key, path=record.path, digest=record.digest)
            inputs.append(artifact_input(record.stage.value, made))
    artifact = run_stage(run, config, inputs)
    for name in (REPORT_HTML_FILE, CERTIFICATE_PAGE_FILE, REPORT_MARKDOWN_FILE):
        if (Path(artifact.path) / name).is_file():
            shutil.copyfile(Path(artifact.path) / name, folder / name)
    for name in (REPORT_HTML_FILE, CERTIFICATE_PAGE_FILE):
        (run.output_dir / name).unlink(missing_ok=True)
        if (folder / name).is_file():
            shutil.copyfile(folder / name, run.output_dir / name)
    run.tracking.log_report(folder)
    run.tracking.log_headline(_headline(run))
    show_markdown("report", (folder / REPORT_MARKDOWN_FILE).read_text(encoding="utf-8"), description="The report")
    if page := run.tracking.file_url(run.mlflow_run_id, f"report/{REPORT_HTML_FILE}"):
        link = f"[The report with its plots]({page})"
        show_markdown("report-page", link, description="The report as a page, in MLflow")
    return folder / REPORT_HTML_FILE


def _record(run: PipelineRun) -> PipelineRecord:
    """The record of the run, with what is not as in the last run of its name."""
    record, before = run.as_record(), last_record(run.output_dir, but=run.run_id)
    if before is None or before.run_name != record.run_name:
        return record
    changes = changes_since(before, record)
    return record.model_copy(update={"last_run_at": before.started_at, "changes": changes})


def _file_input(name: str, path: Path, run: PipelineRun) -> StageInput:
    return StageInput(name=name, path=str(path), digest=f"sha256:{file_sha256(path)}", origin=run.run_id)


def _headline(run: PipelineRun) -> dict[str, float]:
    """The figures of both evaluations, as `reward_model/…` and `policy/…`."""
    return {
        f"{STAGE_FACTS[record.stage].judges}/{metric.name}": metric.value
        for record in run.records
        if STAGE_FACTS[record.stage].judges
        for metric in record.metrics
    }
