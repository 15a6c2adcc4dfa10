"""evaluate_reward_model: the figures behind the reward-model gate, and the gate."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from containers.contracts.names import REWARD_MODEL_EVALUATION_FILE
from containers.contracts.records import GateVerdict, RewardModelEvaluation
from containers.contracts.spec import ArtifactRef
from containers.contracts.stage_configs import EvaluateRewardModelConfig
from tasks.gates import RewardModelGate, judge_reward_model
from tasks.markdown import reward_model_markdown
from tasks.pipeline_run import PipelineRun
from tasks.prefect_artifacts import show_markdown
from tasks.run_stage import run_stage
from tasks.stage_inputs import evaluate_reward_model_inputs


@task(name="evaluate_reward_model", task_run_name="evaluate_reward_model", cache_policy=NO_CACHE, persist_result=False)
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
    show_markdown(
        "evaluate-reward-model", reward_model_markdown(evaluation, verdict), description="Accuracy, margins, gate"
    )
    return verdict
