"""The retraining as people and schedules start it in Prefect."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows import form_fields as form
from flows.pipeline_form import LEFT_EMPTY, named_config, values_given
from flows.retrain import rlhf_retrain as retrain
from flows.served_run import ended_in_words, tell_prefect


@flow(
    name="rlhf-retrain",
    flow_run_name="retrain {start_from}",
    validate_parameters=False,
    persist_result=True,
    result_serializer="json",
    on_completion=[tell_prefect],
    on_failure=[tell_prefect],
)
def rlhf_retrain(start_from: form.StartFrom, more_settings: form.MoreSettings = LEFT_EMPTY) -> "str | State[Any]":
    """Train a challenger on the newest data; it becomes champion only where it is better beyond chance.

    Where nothing changed since the last decision, this ends in seconds, and nothing is started. Add a schedule on the
    page of this deployment.
    """
    settings = values_given(locals()).get("more_settings", [])
    return ended_in_words(lambda: retrain.fn(str(named_config(start_from)), settings))
