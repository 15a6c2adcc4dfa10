"""build_base_model: a small Qwen3 with random weights and its tokenizer, for runs that need no model hub."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from containers.contracts.spec import ArtifactRef, StageInput
from containers.contracts.stage_configs import BuildBaseModelConfig
from tasks.pipeline_run import PipelineRun
from tasks.run_stage import run_stage
from tasks.stage_inputs import build_base_model_inputs, start_model_input


@task(name="build_base_model", task_run_name="build_base_model", cache_policy=NO_CACHE, persist_result=False)
def build_base_model(
    run: PipelineRun, config: BuildBaseModelConfig, pairs: ArtifactRef, *, tokenizer_file: Path | None
) -> StageInput:
    """The model to start from."""
    artifact = run_stage(run, config, build_base_model_inputs(pairs, tokenizer_file))
    run.base_model_origin = f"random weights, built by this run ({artifact.key[:12]})"
    return start_model_input(artifact)
