"""Judge a reward model from anywhere like that of a run, for `rlhf certify`, `rlhf score` and the form."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from containers.contracts.names import StageName
from tasks.config.errors import InvalidConfigError, Mistake, all_of, mistakes_of
from tasks.config.loading import LoadedConfig, load_run_config
from tasks.config.sources import ModelSource
from tasks.pipeline.reward_models import reward_model_source
from tasks.sources.errors import SourceError

COMMAND_LINE = "The command line"
_MAX_NAME_CHARACTERS = 63
T = TypeVar("T")


def certifying_run(
    model: str, config: Path, *, settings: Sequence[str], profile: str | None, base: str | None = None
) -> LoadedConfig:
    """Return the run that judges the model by the data, suites and gate of another run, up to the certificate.

    Args:
        model: a folder, or `org/name@revision` on the hub.
        config: the run whose data, suites, gate, profile and servers are used.
        base: base model of an adapter, instead of the one that the adapter names.

    Raises:
        ConfigError: the run has mistakes, or the model has neither form, or cannot be read or fetched.
    """
    rest = [f"run.until={StageName.EVALUATE_REWARD_MODEL}", *settings]

    def any_model() -> LoadedConfig:
        return load_run_config(config, overrides=["reward_model={path: .}", *rest], profile=profile)

    if "@" in model and not Path(model).exists():  # report mistakes of the file before fetching anything
        run, named = any_model(), model_settings(model, base=base)
    else:
        run, named = all_of(any_model, lambda: model_settings(model, base=base))
    own_name, overrides = run.config.run.name, [*named, *rest]
    if not any(item.startswith("run.name=") for item in settings):
        overrides.append(f"run.name={certified_run_name(own_name, model)}")
    return load_run_config(config, overrides=overrides, profile=profile)


def model_settings(model: str, *, base: str | None = None) -> list[str]:
    """Return `reward_model…=…` for a local folder or a model on the hub; put adapters onto their base model.

    Raises:
        InvalidConfigError: it is neither, or it cannot be read or fetched.
    """
    source = command_line_model(model, base=base)
    if source.path is not None:
        return [f"reward_model={{path: '{_quoted(source.path)}'}}"]
    named = f"hub_id: '{_quoted(source.hub_id or '')}', revision: '{_quoted(source.revision or '')}'"
    return [f"reward_model={{{named}}}"]


def command_line_model(model: str, *, base: str | None = None) -> ModelSource:
    """The reward model that `--model` names.

    Raises:
        InvalidConfigError: its form is unknown, or it cannot be read or fetched.
    """
    try:
        source = usable_source("--model", lambda: reward_model_source(model, base=base))
    except ValidationError as error:
        raise InvalidConfigError(COMMAND_LINE, mistakes_of(error, ModelSource, prefix="--model")) from error
    if source is None:
        raise InvalidConfigError(
            COMMAND_LINE,
            [
                Mistake(
                    "--model",
                    f"`{model}` is no folder here, and not a model on the hub as `org/name@revision`. Name one of the "
                    "two; a revision is a commit or a branch.",
                )
            ],
        )
    return source


def usable_source(option: str, find: Callable[[], T]) -> T:
    """What `find` returns; a source that cannot be used is a mistake of that option.

    Raises:
        InvalidConfigError: it cannot be read or fetched.
    """
    try:
        return find()
    except SourceError as error:
        raise InvalidConfigError(COMMAND_LINE, [Mistake(option, str(error))]) from error


def certified_run_name(run_name: str, model: str) -> str:
    """Name of the run for this model, so that each certificate has its own folder."""
    words = [word for word in re.split(r"[^a-z0-9]+", model.lower()) if word]
    return f"{run_name}-certifies-{'-'.join(words[-4:])}"[:_MAX_NAME_CHARACTERS].rstrip("-")


def _quoted(text: str) -> str:
    return text.replace("'", "''")
