"""train_reward_model: TRL RewardTrainer with LoRA; the score head is trained, saved and reloaded."""

from containers.contracts.configs.stages import TrainRewardModelConfig
from containers.contracts.schedule import plan_batch
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.pipeline.inputs import training_inputs
from tasks.pipeline.run_stage import run_stage
from tasks.prefect_sync.artifacts import show_training
from tasks.run.state import PipelineRun
from tasks.stage_task import stage_task


@stage_task
def train_reward_model(
    run: PipelineRun, config: TrainRewardModelConfig, pairs: ArtifactRef, start_model: StageInput
) -> ArtifactRef:
    """The reward model, merged and as adapter."""
    batch = plan_batch(config.global_batch_size, run.config.gpu_profile)
    artifact = run_stage(run, config, training_inputs(pairs, start_model), batch=batch)
    show_training(run, artifact)
    return artifact
