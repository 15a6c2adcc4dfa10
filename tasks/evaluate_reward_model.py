"""evaluate_reward_model: the figures behind the reward-model gate, and the gate."""

from pathlib import Path

from containers.contracts.names import REWARD_MODEL_EVALUATION_FILE
from containers.contracts.records import GateVerdict, RewardModelEvaluation
from containers.contracts.spec import ArtifactRef
from containers.contracts.stage_configs import EvaluateRewardModelConfig
from tasks.gates import RewardModelGate, judge_reward_model
from tasks.markdown import reward_model_markdown
from tasks.pipeline_run import PipelineRun
from tasks.prefect_artifacts import show_stage
from tasks.run_stage import run_stage
from tasks.stage_inputs import evaluate_reward_model_inputs
from tasks.stage_task import stage_task


@stage_task
def evaluate_reward_model(
    run: PipelineRun,
    config: EvaluateRewardModelConfig,
    gate: RewardModelGate,
    *,
    pairs: ArtifactRef,
    reward_model: ArtifactRef,
) -> GateVerdict:
    """Whether policy training may start against this reward model."""
    artifact = run_stage(run, config, evaluate_reward_model_inputs(config, pairs, reward_model))
    evaluation = RewardModelEvaluation.model_validate_json(
        (Path(artifact.path) / REWARD_MODEL_EVALUATION_FILE).read_bytes()
    )
    verdict = judge_reward_model(evaluation, gate)
    run.gates.append(verdict)
    show_stage(run, artifact.stage, reward_model_markdown(evaluation, verdict), description="Accuracy, margins, gate")
    return verdict
