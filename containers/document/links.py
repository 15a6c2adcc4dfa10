"""Addresses of pages: only http and https become links."""

from containers.contracts.records import PipelineRecord


def safe_url(url: str) -> str:
    """`url` if it leads to http or https; empty for anything else, such as `javascript:`."""
    return url if url.startswith(("http://", "https://")) else ""


def mlflow_run_url(pipeline_url: str, run_id: str) -> str:
    """Page of a stage's MLflow run, beside that of its pipeline; empty where either is unknown.

    Example: `http://host/#/experiments/1/runs/0f3c` and `77aa` give `http://host/#/experiments/1/runs/77aa`.
    """
    runs, found, _ = safe_url(pipeline_url).rpartition("/runs/")
    return f"{runs}{found}{run_id}" if found and run_id.isalnum() else ""


def ui_command(pipeline: PipelineRecord) -> str:
    """The command that opens the links of the page again; empty where no link leads to this machine."""
    local = ("http://127.0.0.1:", "http://localhost:")
    if not any(url.startswith(local) for url in (pipeline.mlflow_url, pipeline.prefect_url)):
        return ""
    program, run, options = pipeline.command.partition(" run ")
    return f"{program} ui {options}" if run else "rlhf ui"
