"""The form of `certify` in Prefect: a reward model from anywhere in place of the run's own, and its certificate."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from containers.formatting import one_line
from flows.certify import certified_run_name, model_settings
from flows.forms.pipeline import JsonSchema, SetsKeys, bounded_text, further_settings, load_form, values_given
from flows.rlhf import train_and_judge
from flows.serving.form_run import NOT_STARTED, present_values, served_run_name
from tasks.config.errors import InvalidConfigError, Mistake
from tasks.config.loading import LoadedConfig
from tasks.config.run import RunConfig
from tasks.prefect_sync.artifacts import show_certificate
from tasks.run.state import PipelineRun

_FIELD = "reward_model"
_NAME_CHARACTERS = 80
# Placeholder for the model while the rest of the form is checked, so that rules of the run's own training do not count.
_ANY_MODEL = "reward_model={path: .}"


class NamesRewardModel(SetsKeys):
    """Annotation of a field: a folder, or a hub model at a revision, in place of the reward model's training."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Schema of a text; the start of the run checks whether there is such a model."""
        return bounded_text(
            {
                "type": "string",
                "title": "Reward Model",
                "description": "The reward model to judge: a folder on the machine that serves, for example "
                "`outputs/demo`, or a model on the hub at a commit or branch, as `org/name@revision`. An adapter is "
                "put onto the base model that it names. Empty: the run's own reward model, trained if necessary.",
            }
        )

    def overrides(self, value: object) -> list[str]:
        """Overrides that put the model in place of the run's own.

        Raises:
            InvalidConfigError: its form is unknown, or it cannot be read or fetched; names the form's field.
        """
        try:
            return model_settings(str(value).strip())
        except InvalidConfigError as error:
            told = [Mistake(_FIELD, mistake.text) for mistake in error.mistakes]
            raise InvalidConfigError("The form", told) from error


RewardModel: TypeAlias = Annotated[str | None, NamesRewardModel()]


def load_certify_form(
    form: Callable[..., object], values: Mapping[str, Any], *, fixed: Sequence[str] = ()
) -> tuple[LoadedConfig, str]:
    """Load like `load_form`; a model from elsewhere gets its own run, so that each certificate keeps its folder.

    Mistakes of the run are reported before any request to a hub for the model.

    Raises:
        ConfigError: with every mistake.
    """
    given = values_given(values)
    model = given.pop(_FIELD, None)
    if model is None:
        return load_form(form, given, fixed=fixed)
    loaded, _ = load_form(form, given, fixed=(*fixed, _ANY_MODEL))
    is_named = "save_as" in given or any(item.startswith("run.name=") for item in further_settings(given))
    own_name = {} if is_named else {"save_as": certified_run_name(loaded.config.run.name, str(model))}
    return load_form(form, {**given, **own_name, _FIELD: model}, fixed=fixed)


def certify_name() -> str:
    """Name of the run in Prefect: the judged model and the run that judges it. Sends no request to a hub."""
    values = present_values()
    model = values.get(_FIELD)
    if model is None:
        return served_run_name()
    return f"certify {one_line(str(model), _NAME_CHARACTERS)} by {values.get('start_from', NOT_STARTED)}"


def certified(run: PipelineRun, config: RunConfig, checked: object) -> Iterator[object]:
    """Run `train_and_judge`; then show the certificate among the run's artifacts, even if the gate closed."""
    try:
        yield from train_and_judge(run, config, checked)
    finally:
        show_certificate(run)
