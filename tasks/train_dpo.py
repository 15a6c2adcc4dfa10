"""train_dpo: the policy by a loss on the pairs themselves, if the run configures it in place of train_policy."""

from containers.contracts.names import StageName
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_training
from tasks.run.state import PipelineRun


@StageTask
def train_dpo(
    run: PipelineRun,
    *,
    pairs: ArtifactRef,
    start_model: ArtifactRef | StageInput,
    reference: ArtifactRef | None = None,
) -> ArtifactRef:
    """Train the policy; the artifact has it merged and, with LoRA, as adapter.

    Args:
        reference: log-probabilities of the pairs under the start model; None for a loss without a reference.
    """
    artifact = make(run, StageName.TRAIN_DPO, pairs=pairs, start_model=start_model, reference=reference)
    show_training(run, artifact)
    return artifact
