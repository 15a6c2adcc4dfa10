"""train_policy: the policy by the configured algorithm, against the configured rewards."""

from containers.contracts.names import CERTIFICATE_INPUT, StageName
from containers.contracts.records import GateVerdict
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.config.gates import require_certificate
from tasks.pipeline.further_reward_models import further_certificate_inputs
from tasks.pipeline.inputs import artifact_input
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_training
from tasks.run.state import PipelineRun


@StageTask
def train_policy(
    run: PipelineRun,
    *,
    prompts: ArtifactRef,
    start_model: ArtifactRef | StageInput,
    reward_model: ArtifactRef | StageInput | None = None,
    gate: GateVerdict | None = None,
) -> ArtifactRef:
    """Train the policy; the artifact has it merged and as adapter.

    Args:
        reward_model: None, and no `gate`, in a run without preferences.

    Raises:
        GateClosedError: the reward model did not pass and has no waiver, or it has no certificate.
    """
    certificates: tuple[StageInput, ...] = ()
    if gate is not None:
        own = artifact_input(CERTIFICATE_INPUT, require_certificate(gate))
        certificates = (own, *further_certificate_inputs(run.config))
    artifact = make(
        run,
        StageName.TRAIN_POLICY,
        prompts=prompts,
        start_model=start_model,
        reward_model=reward_model,
        unkeyed=certificates,
    )
    show_training(run, artifact)
    return artifact
