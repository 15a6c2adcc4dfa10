"""train_sft: supervised fine-tuning before preferences, if the run configures it."""

from containers.contracts.names import StageName
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_training
from tasks.run.state import PipelineRun


@StageTask
def train_sft(
    run: PipelineRun,
    *,
    start_model: ArtifactRef | StageInput,
    pairs: ArtifactRef | None = None,
    demonstrations: ArtifactRef | None = None,
) -> ArtifactRef:
    """Fine-tune the model that reward model and policy start from, on demonstrations or else on pairs."""
    artifact = make(run, StageName.TRAIN_SFT, pairs=pairs, demonstrations=demonstrations, start_model=start_model)
    show_training(run, artifact)
    return artifact
