"""compare_policies: the policies of several arms against each other, by the judges of the runs."""

from collections.abc import Sequence
from pathlib import Path

from containers.arms.records import PolicyComparison
from containers.arms.tables import comparison_blocks
from containers.contracts.configs.compare_policies import ComparedPolicy, ComparePoliciesConfig
from containers.contracts.configs.evaluate_policy import EvaluatePolicyConfig
from containers.contracts.names import POLICY_COMPARISON_FILE, StageName
from containers.contracts.spec import StageInput
from tasks.arms.pairs import pairs_artifact, started_alike
from tasks.arms.results import ArmResult
from tasks.display import current_display
from tasks.judges.verdicts import VERDICTS_FOLDER, collected
from tasks.pipeline.inputs import artifact_input
from tasks.pipeline.judging_inputs import judge_model_inputs
from tasks.pipeline.run_stage import run_stage
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_stage
from tasks.run.state import PipelineRun


@StageTask
def compare_policies(
    run: PipelineRun, results: Sequence[ArmResult], *, same_rewards: bool, with_start: bool
) -> PolicyComparison:
    """Compare the policies of these arms.

    Args:
        results: arms that were judged, in order.
        same_rewards: whether the same rewards judged all of them.
        with_start: whether all started from the same model, so that it may be compared too.

    Raises:
        StageFailedError: the stage failed.
        SourceError: the model of a judge, or a judge behind an address, is not available.
    """
    evaluation = run.config.stage_config(StageName.EVALUATE_POLICY)
    if not isinstance(evaluation, EvaluatePolicyConfig):
        raise TypeError("The run has no evaluate_policy.")
    with_start = with_start and started_alike(results)
    config = ComparePoliciesConfig(
        policies=tuple(ComparedPolicy(arm=result.arm.name, seed=result.arm.seed) for result in results),
        evaluation=evaluation.model_copy(update={"rewards_trained_it": False}),
        same_rewards=same_rewards,
        with_start=with_start,
    )
    inputs = [
        artifact_input(f"{role}_{place}", made)
        for place, result in enumerate(results)
        for role, made in (("completions", result.completions), ("verdict", result.verdict))
        if made is not None
    ]
    asked = _answers(run, results, with_start=with_start)
    artifact = run_stage(run, config, (*inputs, *judge_model_inputs(run.config), *asked))
    path = Path(artifact.path) / POLICY_COMPARISON_FILE
    comparison = PolicyComparison.model_validate_json(path.read_bytes())
    show_stage(run, artifact.stage, *comparison_blocks(comparison), description="Arm against arm")
    return comparison


def _answers(run: PipelineRun, results: Sequence[ArmResult], *, with_start: bool) -> tuple[StageInput, ...]:
    """What the judges behind addresses wrote about each pair of answers; what they wrote before is not asked again."""
    if not run.config.asked_judges:
        return ()
    pairs = pairs_artifact(results, run.output_dir / "pairs", with_start=with_start)
    folder = run.store_dir / VERDICTS_FOLDER
    return tuple(collected(judge, pairs, folder, say=current_display().say) for judge in run.config.asked_judges)
