"""compute_reference: log-probabilities of the pairs under the model from which train_dpo starts."""

from containers.contracts.names import StageName
from containers.contracts.spec import ArtifactRef, StageInput
from containers.report.stages import stage_section
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_stage
from tasks.run.state import PipelineRun


@StageTask
def compute_reference(run: PipelineRun, *, pairs: ArtifactRef, start_model: ArtifactRef | StageInput) -> ArtifactRef:
    """The reference of train_dpo; runs that differ in loss, beta or learning rate share it."""
    artifact = make(run, StageName.COMPUTE_REFERENCE, pairs=pairs, start_model=start_model)
    if record := run.record_of(artifact.stage):
        show_stage(run, artifact.stage, stage_section(record), description="The pairs under the reference")
    return artifact
