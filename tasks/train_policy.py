"""train_policy: TRL RLOOTrainer against that reward model, with KL to the start model."""

from containers.contracts.configs.stages import TrainPolicyConfig
from containers.contracts.identity import policy_batch
from containers.contracts.records import GateVerdict
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.config.gates import demand_certificate
from tasks.pipeline.inputs import certificate_input, train_policy_inputs
from tasks.pipeline.run_stage import run_stage
from tasks.prefect_sync.artifacts import show_training
from tasks.run.state import PipelineRun
from tasks.stage_task import stage_task


@stage_task
def train_policy(
    run: PipelineRun,
    config: TrainPolicyConfig,
    *,
    pairs: ArtifactRef,
    start_model: StageInput,
    reward_model: ArtifactRef | StageInput,
    gate: GateVerdict,
) -> ArtifactRef:
    """The policy, merged and as adapter.

    Raises:
        GateClosedError: the reward model did not pass and nobody waived it, or it has no certificate.
    """
    certificate = demand_certificate(gate)
    batch = policy_batch(config, run.config.gpu_profile)
    inputs = (*train_policy_inputs(pairs, start_model, reward_model), certificate_input(certificate))
    artifact = run_stage(run, config, inputs, batch=batch)
    show_training(run, artifact)
    return artifact
