"""The retraining as people and schedules start it in Prefect."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows import form_fields as form
from flows.config_loading import load_run_config
from flows.form_choices import require_allowed
from flows.form_folders import require_inside
from flows.pipeline_form import (
    LEFT_EMPTY,
    MORE_SETTINGS,
    TO_BE_CHOSEN,
    chosen_config,
    further_settings,
    told_by_field,
    values_given,
)
from flows.retrain import rlhf_retrain as retrain
from flows.served_run import NOT_STARTED, ended_in_words, present_values, tell_prefect


def retrain_name() -> str:
    """What the retraining is called in the list of runs; tells apart what each starts from."""
    return f"retrain {present_values().get('start_from', NOT_STARTED)}"


@flow(
    name="rlhf-retrain",
    flow_run_name=retrain_name,
    validate_parameters=False,
    persist_result=True,
    result_serializer="json",
    on_completion=[tell_prefect],
    on_failure=[tell_prefect],
)
def rlhf_retrain(
    start_from: form.StartFrom = TO_BE_CHOSEN, more_settings: form.MoreSettings = LEFT_EMPTY
) -> "str | State[Any]":
    """Train a challenger on the newest data; it becomes champion only where it is better beyond chance.

    Where nothing changed since the last decision, this ends in seconds, and nothing is started. Add a schedule on the
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

    return ended_in_words(run)
