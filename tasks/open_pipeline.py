"""Opens a pipeline run: chooses the runtime, says so, and keeps the MLflow parent run open."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from containers.launch.docker import DockerRuntime, stage_image_digest
from containers.launch.process import ProcessRuntime
from containers.launch.runtime import StageRuntime
from tasks.check_system import choose_runtime
from tasks.display import current_display
from tasks.pipeline_run import PipelineRun, RunSettings
from tasks.tracking import Tracking


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
    chosen, reason = choose_runtime(runtime, image=image)
    current_display().say(f"Runtime  {reason}")
    stage_runtime: StageRuntime = DockerRuntime() if chosen == "docker" else ProcessRuntime()
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    tracking = Tracking(mlflow_uri, output_dir=settings.output_dir, experiment=experiment)
    run = PipelineRun(
        settings,
        runtime=stage_runtime,
        image=image if chosen == "docker" else None,
        image_digest=stage_image_digest(image) if chosen == "docker" else "",
        tracking=tracking,
    )
    tags = {"rlhf.run_id": run.run_id, "rlhf.runtime": chosen, **{f"rlhf.tag.{tag}": "true" for tag in settings.tags}}
    run.mlflow_run_id = tracking.start_pipeline(settings.name, tags=tags, params=params)
    try:
        yield run
    except BaseException as error:
        tracking.finish_pipeline("FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    tracking.finish_pipeline("FINISHED")
