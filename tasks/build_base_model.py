"""build_base_model: a small Qwen3 with random weights and its tokenizer, for runs that need no model hub."""

from pathlib import Path

from containers.contracts.configs.stages import BuildBaseModelConfig
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.pages.markdown import stage_markdown
from tasks.pipeline.inputs import build_base_model_inputs, start_model_input
from tasks.pipeline.run_stage import run_stage
from tasks.prefect_sync.artifacts import show_stage
from tasks.run.state import PipelineRun
from tasks.stage_task import stage_task


@stage_task
def build_base_model(
    run: PipelineRun, config: BuildBaseModelConfig, pairs: ArtifactRef, *, tokenizer_file: Path | None
) -> StageInput:
    """The model to start from."""
    artifact = run_stage(run, config, build_base_model_inputs(pairs, tokenizer_file))
    run.base_model_origin = f"random weights, built by this run ({artifact.key[:12]})"
    if record := run.record_of(artifact.stage):
        show_stage(run, artifact.stage, stage_markdown(record), description="A model with random weights")
    return start_model_input(artifact)
