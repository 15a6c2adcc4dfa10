"""Open the run of a configuration: choose the runtime, open tracking, and close it also after an error."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.config.run import RunConfig
from tasks.pipeline.open_run import open_pipeline
from tasks.prefect_sync.naming import introduce_run
from tasks.run.names import run_tags, run_title
from tasks.run.state import PipelineRun

DEFAULT_MLFLOW_URI = "http://127.0.0.1:5000"


@contextmanager
def open_run(config: RunConfig, *, command: str, config_yaml: str) -> Iterator[PipelineRun]:
    """Open the run that `config` describes; its MLflow parent run is open during the block."""
    with open_pipeline(
        config,
        mlflow_uri=mlflow_uri(config),
        command=command,
        config_yaml=config_yaml,
        title=run_title(config, command=command),
    ) as run:
        introduce_run(run, run_tags(config, runtime=run.runtime.name))
        yield run


def mlflow_uri(config: RunConfig) -> str:
    """Address of the configured MLflow server, else the environment's, else the one that the CLI starts."""
    return config.tracking.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_MLFLOW_URI
