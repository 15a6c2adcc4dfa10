"""The flows that users start in Prefect: the pipeline, and each of its parts. One function is one form."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from containers.contracts.names import StageName
from flows.arms import rlhf_arms as arms
from flows.forms import fields as form
from flows.forms.arms import ComparisonName, checked_arms_form
from flows.forms.choices import require_allowed
from flows.forms.folders import require_inside
from flows.forms.pipeline import (
    LEFT_EMPTY,
    MORE_SETTINGS,
    TO_BE_CHOSEN,
    chosen_config,
    further_settings,
    told_by_field,
    values_given,
)
from flows.retrain import rlhf_retrain as retrain
from flows.serving.certify_form import RewardModel, certified, certify_name, load_certify_form
from flows.serving.form_run import NOT_STARTED, ended_or_failed, present_values, run_form, served_run_name, tell_prefect
from tasks.config.loading import load_run_config


def retrain_name() -> str:
    """Name of the retraining in the list of runs, with the configuration that it starts from."""
    return f"retrain {present_values().get('start_from', NOT_STARTED)}"


# The server checks values against the form only; our own messages name mistakes against a run's rules. A suspended run
# needs a persisted result; tasks need none.
_SERVED: Any = {
    "flow_run_name": served_run_name,
    "validate_parameters": False,
    "persist_result": True,
    "result_serializer": "json",
    "on_completion": [tell_prefect],
    "on_failure": [tell_prefect],
}


@flow(name="rlhf-retrain", **_SERVED | {"flow_run_name": retrain_name})
def rlhf_retrain(
    start_from: form.StartFrom = TO_BE_CHOSEN, more_settings: form.MoreSettings = LEFT_EMPTY
) -> "str | State[Any]":
    """Train a challenger on the newest data; it becomes champion only if it is better beyond chance.

    If nothing changed since the last decision, the run ends within seconds and starts no stage. Add a schedule on the
    page of this deployment.
    """
    values = locals()

    def run() -> "State[Any]":
        path, settings = str(chosen_config(values)), further_settings(values)
        require_inside(values_given(values), lines=MORE_SETTINGS)
        with told_by_field({MORE_SETTINGS: settings}):
            loaded = load_run_config(path, overrides=settings)
        require_allowed(loaded.config, loaded.path)
        with told_by_field({MORE_SETTINGS: settings}):
            return retrain.fn(path, settings)

    return ended_or_failed(run)


def arms_name() -> str:
    """Name of a comparison in the list of runs."""
    return f"arms {present_values().get('start_from', NOT_STARTED)}"


@flow(name="rlhf-arms", **_SERVED | {"flow_run_name": arms_name})
def rlhf_arms(
    start_from: ComparisonName = TO_BE_CHOSEN,
    gpu_profile: form.Profile = LEFT_EMPTY,
    more_settings: form.MoreSettings = LEFT_EMPTY,
) -> "str | State[Any]":
    """Train a policy in several ways from the same data, and compare the ways: each arm is a run below this one.

    What the arms share is made once. Cancel stops the arm at work after a checkpoint; Retry goes on from there.
    """
    values = locals()

    def run() -> str:
        path, settings, command = checked_arms_form(values)
        return str(arms.fn(str(path), settings, command=command))

    return ended_or_failed(run)


@flow(name="rlhf-pipeline", **_SERVED)
def rlhf_pipeline(
    start_from: form.StartFrom = TO_BE_CHOSEN,
    save_as: form.SaveAs = LEFT_EMPTY,
    gpu_profile: form.Profile = LEFT_EMPTY,
    base_model: form.BaseModelId = LEFT_EMPTY,
    base_model_revision: form.BaseModelRevision = LEFT_EMPTY,
    dataset: form.DatasetId = LEFT_EMPTY,
    dataset_revision: form.DatasetRevision = LEFT_EMPTY,
    train_file: form.TrainFile = LEFT_EMPTY,
    validation_file: form.ValidationFile = LEFT_EMPTY,
    sample_limit: form.SampleLimit = LEFT_EMPTY,
    reward_model_learning_rate: form.RewardModelLearningRate = LEFT_EMPTY,
    reward_model_epochs: form.RewardModelEpochs = LEFT_EMPTY,
    minimum_accuracy: form.MinimumAccuracy = LEFT_EMPTY,
    approval: form.RewardModelApproval = LEFT_EMPTY,
    prompts: form.PromptsId = LEFT_EMPTY,
    prompts_revision: form.PromptsRevision = LEFT_EMPTY,
    prompts_file: form.PromptsFile = LEFT_EMPTY,
    rewards: form.Rewards = LEFT_EMPTY,
    algorithm: form.Algorithm = LEFT_EMPTY,
    num_generations: form.NumGenerations = LEFT_EMPTY,
    beta: form.Beta = LEFT_EMPTY,
    policy_steps: form.PolicySteps = LEFT_EMPTY,
    minimum_reward_gain: form.MinimumRewardGain = LEFT_EMPTY,
    seed: form.Seed = LEFT_EMPTY,
    until: form.Until = LEFT_EMPTY,
    again_from: form.AgainFrom = LEFT_EMPTY,
    more_settings: form.MoreSettings = LEFT_EMPTY,
) -> "str | State[Any]":
    """From preferences, or prompts with answers, to a judged reward model, a judged policy and a report.

    Choose what to start from, and change only what you want different. Finished stages are reused. Cancel stops the
    run after a checkpoint; Retry goes on from the last good step.
    """
    return run_form(locals())


@flow(name="filter-dataset", **_SERVED)
def filter_dataset(
    start_from: form.StartFrom = TO_BE_CHOSEN,
    save_as: form.SaveAs = LEFT_EMPTY,
    dataset: form.DatasetId = LEFT_EMPTY,
    dataset_revision: form.DatasetRevision = LEFT_EMPTY,
    train_file: form.TrainFile = LEFT_EMPTY,
    validation_file: form.ValidationFile = LEFT_EMPTY,
    sample_limit: form.SampleLimit = LEFT_EMPTY,
    seed: form.Seed = LEFT_EMPTY,
    more_settings: form.MoreSettings = LEFT_EMPTY,
) -> "str | State[Any]":
    """Filter preference rows to clean pairs, and stop there. Counts the kept rows, and the others by reason."""
    return run_form(locals(), until=StageName.FILTER_DATASET)


@flow(name="train-reward-model", **_SERVED)
def train_reward_model(
    start_from: form.StartFrom = TO_BE_CHOSEN,
    save_as: form.SaveAs = LEFT_EMPTY,
    gpu_profile: form.Profile = LEFT_EMPTY,
    base_model: form.BaseModelId = LEFT_EMPTY,
    base_model_revision: form.BaseModelRevision = LEFT_EMPTY,
    dataset: form.DatasetId = LEFT_EMPTY,
    dataset_revision: form.DatasetRevision = LEFT_EMPTY,
    train_file: form.TrainFile = LEFT_EMPTY,
    validation_file: form.ValidationFile = LEFT_EMPTY,
    sample_limit: form.SampleLimit = LEFT_EMPTY,
    reward_model_learning_rate: form.RewardModelLearningRate = LEFT_EMPTY,
    reward_model_epochs: form.RewardModelEpochs = LEFT_EMPTY,
    seed: form.Seed = LEFT_EMPTY,
    again_from: form.AgainFrom = LEFT_EMPTY,
    more_settings: form.MoreSettings = LEFT_EMPTY,
) -> "str | State[Any]":
    """Train a reward model, without judging it. Stages that it needs run first."""
    return run_form(locals(), until=StageName.TRAIN_REWARD_MODEL)


@flow(name="certify", **_SERVED | {"flow_run_name": certify_name})
def certify(
    start_from: form.StartFrom = TO_BE_CHOSEN,
    reward_model: RewardModel = LEFT_EMPTY,
    save_as: form.SaveAs = LEFT_EMPTY,
    gpu_profile: form.Profile = LEFT_EMPTY,
    minimum_accuracy: form.MinimumAccuracy = LEFT_EMPTY,
    approval: form.RewardModelApproval = LEFT_EMPTY,
    seed: form.Seed = LEFT_EMPTY,
    again_from: form.AgainFrom = LEFT_EMPTY,
    more_settings: form.MoreSettings = LEFT_EMPTY,
) -> "str | State[Any]":
    """Judge a reward model by a run's data, suites and gate, wherever it was trained; the certificate is its artifact.

    Without a reward model, the run's own is judged. If it was trained already, it comes from the store.
    """
    return run_form(locals(), until=StageName.EVALUATE_REWARD_MODEL, load=load_certify_form, stages=certified)


@flow(name="train-policy", **_SERVED)
def train_policy(
    start_from: form.StartFrom = TO_BE_CHOSEN,
    save_as: form.SaveAs = LEFT_EMPTY,
    gpu_profile: form.Profile = LEFT_EMPTY,
    prompts: form.PromptsId = LEFT_EMPTY,
    prompts_revision: form.PromptsRevision = LEFT_EMPTY,
    prompts_file: form.PromptsFile = LEFT_EMPTY,
    rewards: form.Rewards = LEFT_EMPTY,
    algorithm: form.Algorithm = LEFT_EMPTY,
    num_generations: form.NumGenerations = LEFT_EMPTY,
    beta: form.Beta = LEFT_EMPTY,
    policy_steps: form.PolicySteps = LEFT_EMPTY,
    seed: form.Seed = LEFT_EMPTY,
    again_from: form.AgainFrom = LEFT_EMPTY,
    more_settings: form.MoreSettings = LEFT_EMPTY,
) -> "str | State[Any]":
    """Train a policy by the rewards of the run, without judging it. The gate of a reward model comes first."""
    return run_form(locals(), until=StageName.TRAIN_POLICY)
