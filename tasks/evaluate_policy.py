"""evaluate_policy: policy against reference on held-out prompts, and the gate."""

from pathlib import Path

from containers.contracts.names import POLICY_EVALUATION_FILE, StageName
from containers.contracts.records import GateVerdict, PolicyEvaluation
from containers.contracts.spec import ArtifactRef, StageInput
from containers.report.gates import gate_section
from containers.report.policy.comparison import policy_section
from tasks.config.gates import judge_policy
from tasks.gates.set_losses import loss_rules
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_stage
from tasks.run.state import PipelineRun


@StageTask
def evaluate_policy(
    run: PipelineRun,
    *,
    completions: ArtifactRef,
    start_model: ArtifactRef | StageInput,
    reward_model: ArtifactRef | StageInput | None = None,
    set_results: ArtifactRef | None = None,
) -> GateVerdict:
    """Judge whether the policy is better than its reference beyond chance.

    Args:
        start_model: a language model that judges may be the same.
        reward_model: None in a run without preferences.
        set_results: the models on standard sets; None in a run without them.
    """
    artifact = make(
        run, StageName.EVALUATE_POLICY, completions=completions, start_model=start_model, reward_model=reward_model
    )
    evaluation = PolicyEvaluation.model_validate_json((Path(artifact.path) / POLICY_EVALUATION_FILE).read_bytes())
    losses = () if set_results is None else loss_rules(run.config.sets, set_results)
    verdict = judge_policy(evaluation, run.config.gates.policy, losses=losses)
    run.gates.append(verdict)
    shown = (gate_section(verdict), policy_section(evaluation, by_pairs=run.config.train_dpo is not None))
    show_stage(run, artifact.stage, *shown, description="Policy against reference")
    return verdict
