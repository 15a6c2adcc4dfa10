"""answer_sets: the models of the run answer standard sets."""

from containers.contracts.names import StageName
from containers.contracts.spec import ArtifactRef, StageInput
from containers.report.stages import stage_section
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_stage
from tasks.run.state import PipelineRun


@StageTask
def answer_sets(
    run: PipelineRun,
    *,
    start_model: ArtifactRef | StageInput,
    before_model: ArtifactRef | StageInput | None = None,
    policy: ArtifactRef | None = None,
) -> ArtifactRef:
    """The answers that evaluate_sets judges.

    Args:
        before_model: the model before supervised fine-tuning; None in a run without it.
        policy: None in a run that only fine-tunes.
    """
    artifact = make(run, StageName.ANSWER_SETS, before_model=before_model, start_model=start_model, policy=policy)
    if record := run.record_of(artifact.stage):
        show_stage(run, artifact.stage, stage_section(record), description="The models answer standard sets")
    return artifact
