"""train_sft: supervised fine-tuning before preferences, where the run asks for it."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from containers.contracts.spec import ArtifactRef, StageInput
from containers.contracts.stage_configs import TrainSftConfig
from containers.schedule import plan_batch
from tasks.pipeline_run import PipelineRun
from tasks.prefect_artifacts import show_training
from tasks.run_stage import run_stage
from tasks.stage_inputs import start_model_input, training_inputs


@task(name="train_sft", task_run_name="train_sft", cache_policy=NO_CACHE, persist_result=False)
def train_sft(run: PipelineRun, config: TrainSftConfig, pairs: ArtifactRef, start_model: StageInput) -> StageInput:
    """The fine-tuned model, start of reward model and policy."""
    batch = plan_batch(config.global_batch_size, run.settings.profile)
    artifact = run_stage(run, config, training_inputs(pairs, start_model), batch=batch)
    show_training(artifact)
    return start_model_input(artifact)
