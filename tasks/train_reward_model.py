"""train_reward_model: TRL RewardTrainer with LoRA; the score head is trained, saved and reloaded."""

from containers.contracts.names import StageName
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_training
from tasks.run.state import PipelineRun


@StageTask
def train_reward_model(run: PipelineRun, *, pairs: ArtifactRef, start_model: ArtifactRef | StageInput) -> ArtifactRef:
    """Train the reward model; the artifact has it merged and as adapter."""
    artifact = make(run, StageName.TRAIN_REWARD_MODEL, pairs=pairs, start_model=start_model)
    show_training(run, artifact)
    return artifact
