"""build_base_model: a small Qwen3 with random weights and its tokenizer, for runs that need no model hub."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from containers.contracts.names import MODEL_FOLDER
from containers.contracts.spec import ArtifactRef, StageInput
from containers.contracts.stage_configs import BuildBaseModelConfig
from tasks.pipeline_run import PipelineRun
from tasks.run_stage import artifact_input, run_stage
from tasks.sources import resolve_file


@task(name="build_base_model", task_run_name="build_base_model", cache_policy=NO_CACHE, persist_result=False)
def build_base_model(
    run: PipelineRun, config: BuildBaseModelConfig, pairs: ArtifactRef, *, tokenizer_file: Path | None
) -> StageInput:
    """The model to start from."""
    inputs = [artifact_input("pairs", pairs)]
    if tokenizer_file is not None:
        found = resolve_file(tokenizer_file, name="tokenizer_file")
        inputs.append(StageInput(name=found.name, path=str(found.path), digest=found.digest, origin=found.origin))
    artifact = run_stage(run, config, inputs)
    run.base_model_origin = f"random weights, built by this run ({artifact.key[:12]})"
    return artifact_input("start_model", artifact, folder=MODEL_FOLDER)
