"""train_sft: supervised fine-tuning before preferences, where the run asks for it."""

from containers.contracts.configs.stages import TrainSftConfig
from containers.contracts.schedule import plan_batch
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.pipeline.inputs import start_model_input, training_inputs
from tasks.pipeline.run_stage import run_stage
from tasks.prefect_sync.artifacts import show_training
from tasks.run.state import PipelineRun
from tasks.stage_task import stage_task


@stage_task
def train_sft(run: PipelineRun, config: TrainSftConfig, pairs: ArtifactRef, start_model: StageInput) -> StageInput:
    """The fine-tuned model, start of reward model and policy."""
    batch = plan_batch(config.global_batch_size, run.config.gpu_profile)
    artifact = run_stage(run, config, training_inputs(pairs, start_model), batch=batch)
    show_training(run, artifact)
    return start_model_input(artifact)
