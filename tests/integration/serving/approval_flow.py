"""The pipeline as a served deployment, for tests of gates that wait for people; `python approval_flow.py` serves it."""

from pathlib import Path

from prefect import flow

from flows.rlhf import run_stages
from tasks.config.loading import load_run_config


@flow(name="rlhf", flow_run_name="{run_name}")
def approval_pipeline(run_name: str, overrides: list[str]) -> str:
    """The run of `configs/runs/tiny.yaml` under another name, with changes; returns where the report lies."""
    loaded = load_run_config(Path("configs/runs/tiny.yaml"), overrides=[*overrides, f"run.name={run_name}"])
    return str(run_stages(loaded.config, command="", config_yaml=loaded.yaml_text))


if __name__ == "__main__":
    approval_pipeline.serve(name="approval")
