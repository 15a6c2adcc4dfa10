"""build_base_model: a small Qwen3 with random weights and its tokenizer, for runs that need no model hub."""

from containers.contracts.names import StageName
from containers.contracts.spec import ArtifactRef
from containers.report.stages import stage_section
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_stage
from tasks.run.state import PipelineRun


@StageTask
def build_base_model(
    run: PipelineRun,
    *,
    pairs: ArtifactRef | None = None,
    prompts: ArtifactRef | None = None,
    demonstrations: ArtifactRef | None = None,
) -> ArtifactRef:
    """Build the model to start from, with a tokenizer of the rows that the run has."""
    artifact = make(run, StageName.BUILD_BASE_MODEL, pairs=pairs, prompts=prompts, demonstrations=demonstrations)
    run.base_model_origin = f"random weights, built by this run ({artifact.key[:12]})"
    if record := run.record_of(artifact.stage):
        show_stage(run, artifact.stage, stage_section(record), description="A model with random weights")
    return artifact
