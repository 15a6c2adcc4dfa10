"""sample_completions: what policy and reference write on held-out prompts."""

from containers.contracts.names import StageName
from containers.contracts.spec import ArtifactRef, StageInput
from containers.report.stages import stage_section
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_stage
from tasks.run.state import PipelineRun


@StageTask
def sample_completions(
    run: PipelineRun, *, prompts: ArtifactRef, start_model: ArtifactRef | StageInput, policy: ArtifactRef
) -> ArtifactRef:
    """The completions that every judge of the policy reads."""
    artifact = make(run, StageName.SAMPLE_COMPLETIONS, prompts=prompts, start_model=start_model, policy=policy)
    if record := run.record_of(artifact.stage):
        show_stage(run, artifact.stage, stage_section(record), description="Policy and reference write")
    return artifact
