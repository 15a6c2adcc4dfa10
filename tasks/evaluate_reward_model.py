"""evaluate_reward_model: the figures behind the reward-model gate, and the gate."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from containers.contracts.names import REWARD_MODEL_EVALUATION_FILE
from containers.contracts.records import GateVerdict, RewardModelEvaluation
from containers.contracts.spec import ArtifactRef, StageInput
from containers.contracts.stage_configs import EvaluateRewardModelConfig
from tasks.gates import RewardModelGate, judge_reward_model
from tasks.markdown import reward_model_markdown
from tasks.pipeline_run import PipelineRun
from tasks.prefect_artifacts import show_markdown
from tasks.run_stage import artifact_input, run_stage
from tasks.sources import resolve_file


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
    inputs = [artifact_input("pairs", pairs), artifact_input("reward_model", reward_model)]
    for file in config.pair_files:
        found = resolve_file(Path(file.path), name=f"file_{file.name}")
        inputs.append(StageInput(name=found.name, path=str(found.path), digest=found.digest, origin=found.origin))
    artifact = run_stage(run, config, inputs)
    evaluation = RewardModelEvaluation.model_validate_json(
        (Path(artifact.path) / REWARD_MODEL_EVALUATION_FILE).read_bytes()
    )
    verdict = judge_reward_model(evaluation, gate)
    run.gates.append(verdict)
    show_markdown(
        "evaluate-reward-model", reward_model_markdown(evaluation, verdict), description="Accuracy, margins, gate"
    )
    return verdict
