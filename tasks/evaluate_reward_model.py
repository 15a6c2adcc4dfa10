"""evaluate_reward_model: the figures behind the reward-model gate, and the gate."""

from pathlib import Path

from containers.contracts.certificate import Certificate
from containers.contracts.names import CERTIFICATE_FILE, StageName
from containers.contracts.records import GateVerdict
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.config.gates import judge_reward_model
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import certificate_blocks, show_stage
from tasks.run.state import PipelineRun


@StageTask
def evaluate_reward_model(
    run: PipelineRun, *, pairs: ArtifactRef, reward_model: ArtifactRef | StageInput
) -> GateVerdict:
    """Judge whether a policy may be trained against this reward model."""
    artifact = make(run, StageName.EVALUATE_REWARD_MODEL, pairs=pairs, reward_model=reward_model)
    certificate = Certificate.model_validate_json((Path(artifact.path) / CERTIFICATE_FILE).read_bytes())
    verdict = judge_reward_model(certificate, run.config.gates.reward_model).model_copy(
        update={"certificate": artifact}
    )
    run.gates.append(verdict)
    shown = certificate_blocks(run, certificate, verdict)
    show_stage(run, artifact.stage, *shown, description="The certificate, its gate")
    return verdict
