"""Opens a pipeline run: chooses the runtime, says so, and keeps the MLflow parent run open."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from prefect.runtime import flow_run

from containers.launch.docker import DockerRuntime
from containers.launch.process import ProcessRuntime
from containers.launch.runtime import StageRuntime
from tasks.code_identity import code_identity
from tasks.display import current_display
from tasks.mlflow_operations import RunStatus
from tasks.pipeline_run import PipelineRun, RunSettings
from tasks.tracking import Tracking


class OutputFolderError(Exception):
    """The run's folder cannot be made."""


@contextmanager
def open_pipeline(
    settings: RunSettings,
    *,
    runtime: Literal["auto", "docker", "process"],
    image: str,
    mlflow_uri: str,
    experiment: str,
    params: Mapping[str, object],
) -> Iterator[PipelineRun]:
    """A run whose stages can be started; its MLflow parent run is closed with the right status.

    Raises:
        LaunchError: Docker was asked for, and its image is missing or no daemon answers.
    """
    code = code_identity(runtime, image=image)
    current_display().say(f"Runtime  {code.reason}")
    stage_runtime: StageRuntime = DockerRuntime() if code.runtime == "docker" else ProcessRuntime()
    try:
        settings.output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFolderError(
            f"run.output_dir {settings.output_dir} cannot be used as the run's folder: {error.strerror}. Name a folder "
            f"that can be written, or leave it out: then it is outputs/<run.name>."
        ) from error
    tracking = Tracking(mlflow_uri, output_dir=settings.output_dir, experiment=experiment)
    run = PipelineRun(
        settings,
        runtime=stage_runtime,
        image=image if code.runtime == "docker" else None,
        code=code,
        tracking=tracking,
    )
    tags = {f"rlhf.tag.{tag}": "true" for tag in settings.tags}
    tags |= {"rlhf.run_id": run.run_id, "rlhf.runtime": code.runtime}
    run.prefect_url = str(flow_run.ui_url or "")
    run.mlflow_run_id = tracking.start_pipeline(settings.name, tags=tags, params=params)
    try:
        yield run
    except BaseException as error:
        _finish(tracking, "FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    _finish(tracking, "FINISHED")


def _finish(tracking: Tracking, status: RunStatus) -> None:
    tracking.finish_pipeline(status)
    if tracking.pending or tracking.pending_points:
        current_display().say(
            f"MLflow at {tracking.uri} was not told everything: {tracking.pending} messages with "
            f"{tracking.pending_points} points wait on disk; the next run in this folder delivers them."
        )
