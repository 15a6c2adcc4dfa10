"""evaluate_sets: the models of the run on standard sets, side by side."""

from pathlib import Path

from containers.contracts.names import SETS_EVALUATION_FILE, StageName
from containers.contracts.spec import ArtifactRef, StageInput
from containers.evals.sets.records import SetsEvaluation
from containers.report.policy.sets import sets_section
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_stage
from tasks.run.state import PipelineRun


@StageTask
def evaluate_sets(
    run: PipelineRun,
    *,
    answers: ArtifactRef,
    start_model: ArtifactRef | StageInput,
    reward_model: ArtifactRef | StageInput | None = None,
) -> ArtifactRef:
    """Judge the answers; the policy's gate reads what it lost.

    Args:
        start_model: a language model that judges may be the same.
        reward_model: None in a run without preferences.
    """
    artifact = make(run, StageName.EVALUATE_SETS, answers=answers, start_model=start_model, reward_model=reward_model)
    evaluation = SetsEvaluation.model_validate_json((Path(artifact.path) / SETS_EVALUATION_FILE).read_bytes())
    show_stage(run, artifact.stage, sets_section(evaluation), description="Standard sets, side by side")
    return artifact
