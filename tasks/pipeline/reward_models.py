"""Find and check the models that a run names instead of making them, and turn them into stage inputs."""

import re
from pathlib import Path

from containers.contracts.names import MERGED_FOLDER, StageName
from containers.contracts.spec import StageInput
from tasks.config.sources import ModelSource, RewardModelSource
from tasks.pipeline.inputs import named_model_input
from tasks.run.state import PipelineRun
from tasks.sources.adapter_folders import adapters_root, hold
from tasks.sources.adapters import (
    COMMAND_LINE,
    RUN_FILE,
    Adapter,
    HubBase,
    Keys,
    base_place,
    hub_adapter,
    is_adapter,
    local_adapter,
    look_at_base,
    put_together,
)
from tasks.sources.errors import HubUnreachableError, SourceNotFoundError, UnusableSourceError
from tasks.sources.hub import HubRevision, flat_root, hub_revision, hub_token
from tasks.sources.local import readable_folder
from tasks.sources.pinned import BranchMayHaveMovedError, pinned_model_input
from tasks.sources.resolve import Probe, probe_model

_NAME = "reward_model"
_COMMIT = re.compile(r"[0-9a-f]{40}")


def whole_reward_model(source: ModelSource, *, keys: Keys = RUN_FILE) -> ModelSource:
    """Return a source with all weights: an adapter is combined with its base model.

    Args:
        keys: how the user names the two; for messages.

    Raises:
        SourceError: an adapter or its base model is missing or unusable, or a base is named without an adapter.
    """
    found = _found(source, keys=keys, token=hub_token())
    if isinstance(found, Adapter):
        return ModelSource(path=str(put_together(found, token=hub_token())))
    if found.path is not None and Path(found.path).is_relative_to(adapters_root().resolve()):
        hold(Path(found.path))
    return found


def named_reward_model(source: ModelSource) -> StageInput:
    """Input for a reward model that was trained elsewhere.

    Raises:
        SourceError: it is not available; the message says why and what to do.
    """
    return named_model_input(whole_reward_model(source), name=_NAME)


def known_reward_model(source: ModelSource) -> StageInput:
    """Like `named_reward_model`, without querying the hub.

    Raises:
        BranchMayHaveMovedError: the model, or the base model of the adapter, is named by a branch.
        SourceError: a local file cannot be used, or the base model was not fetched yet.
    """
    if source.hub_id is not None:
        pinned = pinned_model_input(source, name=_NAME)
        if not Path(pinned.path).is_dir():  # never fetched, so nothing was ever made from it
            return pinned
    found = _found(source, keys=RUN_FILE, token=None)
    if not isinstance(found, Adapter):
        return named_model_input(found, name=_NAME) if found.hub_id is None else pinned
    place = base_place(found)
    if isinstance(place, HubBase):
        if not _COMMIT.fullmatch(place.revision):
            raise BranchMayHaveMovedError(place.hub_id, place.revision)
        if not flat_root("model", place.hub_id, place.revision).is_dir():
            raise SourceNotFoundError(f"{place.hub_id}@{place.revision} was not fetched yet.", "The run fetches it.")
    return named_model_input(ModelSource(path=str(put_together(found, token=None))), name=_NAME)


def probe_reward_model(source: ModelSource, *, token: str | None, key: str = _NAME, ask_hub: bool = True) -> Probe:
    """Check that the model, or an adapter and its base model, exists and has what a run needs. Fetches no weights.

    Args:
        ask_hub: also query the hub for the base model; the model itself is always queried.

    Raises:
        SourceError: as `named_reward_model` would.
    """
    found = _found(source, keys=RUN_FILE, token=token)
    if not isinstance(found, Adapter):
        return probe_model(found, token=token, key=key)
    base, missing_bytes = look_at_base(found, token=token, ask_hub=ask_hub)
    return Probe(f"{found.files.origin}, an adapter on {base}", missing_bytes)


def _found(source: ModelSource, *, keys: Keys, token: str | None) -> Adapter | ModelSource:
    """Return the adapter, or the source of a whole model."""
    base = source.base if isinstance(source, RewardModelSource) else None
    if source.hub_id is not None:
        revision = _revision(source.hub_id, source.revision or "", keys=keys, token=token)
        if is_adapter(file.path for file in revision.files):
            return hub_adapter(revision, base=base, token=token, keys=keys)
        whole = ModelSource(hub_id=source.hub_id, revision=source.revision)
        named = f"{source.hub_id}@{source.revision}"
    else:
        place = Path(source.path or "").expanduser()
        if not place.is_dir():
            return ModelSource(path=source.path)  # opening it raises the error
        folder = readable_folder(_model_in(place), key=keys.model)
        if is_adapter(path.name for path in folder.iterdir()):
            return local_adapter(folder, base=base, keys=keys)
        whole = ModelSource(path=str(folder))
        named = str(source.path)
    if base is not None:
        raise UnusableSourceError(
            f"{keys.base} names the base model of an adapter, and {named} is not an adapter.",
            f"Leave {keys.base} out, or name an adapter.",
        )
    return whole


def _revision(hub_id: str, revision: str, *, keys: Keys, token: str | None) -> HubRevision:
    try:
        return hub_revision("model", hub_id, revision=revision, token=token)
    except SourceNotFoundError as error:
        advice = f"Correct {keys.model}, or set HF_TOKEN to a token that may read it."
        raise SourceNotFoundError(error.problem, advice) from error
    except HubUnreachableError as error:
        advice = f"Try again when the hub answers, or name a folder on this disk with {keys.model}."
        raise HubUnreachableError(error.problem, advice) from error


def _model_in(folder: Path) -> Path:
    """Return the model in an artifact of train_reward_model or in a run's output folder; else the folder itself."""
    merged = (folder / MERGED_FOLDER, folder / "artifacts" / StageName.TRAIN_REWARD_MODEL / MERGED_FOLDER)
    if (folder / "config.json").is_file():
        return folder
    return next((place for place in merged if place.is_dir()), folder)


def named_model(run: PipelineRun, source: ModelSource) -> StageInput:
    """Input for the model that the run names.

    Raises:
        SourceError: it is not available; the message says why and what to do.
    """
    model = named_model_input(source)
    run.base_model_origin = model.origin
    return model


def reward_model_source(model: str, *, base: str | None = None) -> ModelSource | None:
    """Return the reward model that a command line names; None if `model` has no known form.

    A folder may be the model itself, a LoRA adapter, the artifact of a training here, or the output folder of its run.
    An adapter is combined with its base model: the source is then a folder beside the fetched files.

    Args:
        model: a folder, or `org/name@revision` on the hub.
        base: base model of an adapter, named in the same two ways; None: the one that the adapter names.

    Raises:
        SourceError: an adapter or its base model is missing or unusable, or `base` is given without an adapter.
        ValidationError: it looks like a model on the hub, but its name or revision is not valid.
    """
    if model and Path(model).is_dir():
        return whole_reward_model(RewardModelSource(path=model, base=base), keys=COMMAND_LINE)
    hub_id, at, revision = model.partition("@")
    if not at or hub_id.count("/") != 1 or Path(hub_id).exists():
        return None
    source = RewardModelSource(hub_id=hub_id, revision=revision, base=base)
    return whole_reward_model(source, keys=COMMAND_LINE)
