"""Reward models that were saved as LoRA adapters: find their base model, and combine the two in one folder."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from containers.contracts.names import ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE, MODEL_FOLDER, StageName
from containers.formatting import one_line, size
from tasks.display import current_display
from tasks.sources.adapter_folders import ModelFiles, adapter_on_base
from tasks.sources.errors import HubUnreachableError, SourceNotFoundError, UnusableSourceError
from tasks.sources.hub import HubRevision, fetch_files, hub_revision, read_hub_text
from tasks.sources.local import readable_folder
from tasks.sources.model_files import model_file_names, require_whole_model, require_whole_weights

_HUB_MODEL = re.compile(r"([\w.-]+/[\w.-]+)@([\w./-]+)")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# The name by which a training of this project names a start model that another stage made.
_MADE_BY_STAGE = re.compile(rf"({StageName.BUILD_BASE_MODEL}|{StageName.TRAIN_SFT}) ([0-9a-f]{{12}})")
_DEFAULT_BRANCH = "main"
_SEEN_CHARACTERS = 120


@dataclass(frozen=True)
class Keys:
    """How the user names the adapter and its base model; for messages."""

    model: str
    base: str

    @property
    def both_ways(self) -> str:
        """The two ways to name the base model."""
        if self.base.startswith("-"):
            return f"{self.base} FOLDER or {self.base} org/name@revision"
        return f"{self.base}: FOLDER or {self.base}: org/name@revision"


COMMAND_LINE = Keys("--model", "--base")
RUN_FILE = Keys("reward_model", "reward_model.base")


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter whose files can be used.

    Attributes:
        files: on this disk, or, for an adapter on the hub, where they will be.
        revision: of an adapter on the hub.
        settings: `adapter_config.json`.
        base: the base model that the user names; None: the one that the adapter names.
    """

    files: ModelFiles
    revision: HubRevision | None
    settings: dict[str, Any]
    base: str | None
    keys: Keys


@dataclass(frozen=True)
class HubBase:
    """A base model on the hub; `is_pinned`: the adapter or the user names the revision."""

    hub_id: str
    revision: str
    is_pinned: bool = True


def is_adapter(names: Iterable[str]) -> bool:
    """Whether files of these names are an adapter without its own model."""
    found = set(names)
    return ADAPTER_CONFIG_FILE in found and "config.json" not in found


def local_adapter(folder: Path, *, base: str | None, keys: Keys) -> Adapter:
    """The adapter in `folder`.

    Args:
        base: a folder, or `org/name@revision` on the hub; None: the one that the adapter names.

    Raises:
        SourceError: it cannot be used.
    """
    files = _local_files(folder, key=keys.model)
    try:
        text = (files.folder / ADAPTER_CONFIG_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(files, error) from error
    settings = _settings(files, text)
    require_whole_weights(files.folder, [ADAPTER_WEIGHTS_FILE])
    return Adapter(files, None, settings, base, keys)


def hub_adapter(revision: HubRevision, *, base: str | None, token: str | None, keys: Keys) -> Adapter:
    """Like `local_adapter`, for an adapter on the hub; fetches no weights.

    Raises:
        SourceError: as `local_adapter`; or the hub does not answer.
    """
    names = model_file_names(file.path for file in revision.files)
    folder = revision.folder_of(names)
    files = ModelFiles(folder, names, revision.origin)
    fetched = folder / ADAPTER_CONFIG_FILE
    text = (
        fetched.read_text(encoding="utf-8", errors="replace")
        if fetched.is_file()
        else read_hub_text(revision, ADAPTER_CONFIG_FILE, token=token)
    )
    return Adapter(files, revision, _settings(files, text), base, keys)


def put_together(adapter: Adapter, *, token: str | None) -> Path:
    """Return the folder of the adapter with its base model; fetch what is not on this disk.

    Raises:
        SourceError: one of the two is missing or cannot be used.
    """
    place = base_place(adapter)
    if isinstance(place, HubBase):
        if not place.is_pinned:
            current_display().say(
                f"The adapter names no revision of its base model {place.hub_id}; {place.revision} is used."
            )
        found, names = _base_on_hub(place, adapter, token=token)
        base = ModelFiles(fetch_files(found, names, token=token), names, found.origin)
    else:
        base = _local_base(place, adapter)
    named = str(adapter.settings.get("base_model_name_or_path") or "")
    if adapter.base is not None and named and named not in (adapter.base, adapter.base.rpartition("@")[0]):
        current_display().say(
            f"The adapter names {one_line(named, 80)} as its base model; {adapter.keys.base} {adapter.base} is used."
        )
    files = adapter.files
    if adapter.revision is not None:
        files = replace(files, folder=fetch_files(adapter.revision, files.names, token=token))
    return adapter_on_base(files, base)


def look_at_base(adapter: Adapter, *, token: str | None, ask_hub: bool = True) -> tuple[str, int]:
    """Describe the base model, and count the bytes of the two that are still to be fetched. Fetches no weights.

    Raises:
        SourceError: as `put_together`.
    """
    missing_bytes = 0
    if adapter.revision is not None and not adapter.files.folder.is_dir():
        missing_bytes = adapter.revision.size_bytes(adapter.files.names)
    place = base_place(adapter)
    if not isinstance(place, HubBase):
        return _local_base(place, adapter).origin, missing_bytes
    if not ask_hub:
        return f"{place.hub_id}@{place.revision}", missing_bytes
    found, names = _base_on_hub(place, adapter, token=token)
    if found.folder_of(names).is_dir():
        return f"{found.origin} (fetched)", missing_bytes
    of_base = found.size_bytes(names)
    return f"{found.origin} ({size(of_base)} to fetch)", missing_bytes + of_base


def base_place(adapter: Adapter) -> Path | HubBase:
    """Return the place of the base model, without querying the hub.

    Raises:
        SourceNotFoundError: neither user nor adapter names it, or nothing is there.
    """
    if adapter.base is not None:
        if Path(adapter.base).expanduser().is_dir():
            return Path(adapter.base).expanduser()
        if hub := _HUB_MODEL.fullmatch(adapter.base):
            return HubBase(hub[1], hub[2])
        raise SourceNotFoundError(
            f"{adapter.keys.base}: `{adapter.base}` is no folder here, and not a model on the hub as "
            "`org/name@revision`.",
            "Name one of the two; a revision is a commit or a branch.",
        )
    named, revision = adapter.settings.get("base_model_name_or_path"), adapter.settings.get("revision")
    if not isinstance(named, str) or not named:
        raise SourceNotFoundError(
            f"The adapter {adapter.files.origin} names no base model (base_model_name_or_path in "
            f"{ADAPTER_CONFIG_FILE}).",
            f"Say which it is with {adapter.keys.both_ways}.",
        )
    for folder in _places(adapter.files.folder, named):
        if folder.is_dir():
            return folder
    if not _is_hub_id(named):
        raise SourceNotFoundError(
            f"The base model of the adapter {adapter.files.origin} is not there: {one_line(named, _SEEN_CHARACTERS)}.",
            f"Say where it is with {adapter.keys.both_ways}.",
        )
    if isinstance(revision, str) and revision:
        return HubBase(named, revision)
    return HubBase(named, _DEFAULT_BRANCH, is_pinned=False)


def _settings(files: ModelFiles, text: str) -> dict[str, Any]:
    """Parse `adapter_config.json`.

    Raises:
        UnusableSourceError: it is no LoRA adapter, or has no safetensors.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(files, error) from error
    kind = value.get("peft_type") if isinstance(value, dict) else None
    if kind != "LORA":
        raise UnusableSourceError(
            f"{files.origin} is an adapter of the kind {one_line(str(kind), 40)}, and only LoRA is supported.",
            "Merge it into its base model, and name the merged model.",
        )
    if ADAPTER_WEIGHTS_FILE not in files.names:
        raise UnusableSourceError(
            f"{files.origin} has no {ADAPTER_WEIGHTS_FILE}: other formats are pickle, and loading them runs code.",
            "Save it again with `save_pretrained`, whose default is safetensors.",
        )
    settings: dict[str, Any] = value
    return settings


def _unreadable(files: ModelFiles, error: Exception) -> UnusableSourceError:
    return UnusableSourceError(
        f"{ADAPTER_CONFIG_FILE} of {files.origin} cannot be read: {error}.", "Save the adapter again."
    )


def _demand_base(names: tuple[str, ...], origin: str, adapter: Adapter) -> None:
    has_config = "config.json" in names
    if not has_config or not any(name.endswith(".safetensors") for name in names):
        what = "weights as safetensors" if has_config else "config.json"
        raise UnusableSourceError(
            f"The base model {origin} of the adapter {adapter.files.origin} has no {what}.",
            f"Name another one with {adapter.keys.both_ways}.",
        )


def _places(adapter: Path, named: str) -> list[Path]:
    """Possible folders of a base model of that name: that path, beside the adapter, or in the adapter's store."""
    if made := _MADE_BY_STAGE.fullmatch(named):
        # <store>/artifacts/train_reward_model/<key>/adapter
        return [path / MODEL_FOLDER for path in sorted(adapter.resolve().glob(f"../../../{made[1]}/{made[2]}*"))]
    if Path(named).is_absolute():
        return [Path(named)]
    # A hub id is looked up only on the hub.
    return [] if _is_hub_id(named) else [adapter / named, adapter.parent / named]


def _is_hub_id(named: str) -> bool:
    return _HUB_ID.fullmatch(named) is not None and not named.startswith(".")


def _local_base(folder: Path, adapter: Adapter) -> ModelFiles:
    files = _local_files(folder, key=adapter.keys.base)
    _demand_base(files.names, files.origin, adapter)
    require_whole_model(files.folder, files.names)
    return files


def _local_files(folder: Path, *, key: str) -> ModelFiles:
    place = readable_folder(folder, key=key)
    names = model_file_names(path.name for path in place.iterdir() if path.is_file())
    return ModelFiles(place, names, str(place))


def _base_on_hub(place: HubBase, adapter: Adapter, *, token: str | None) -> tuple[HubRevision, tuple[str, ...]]:
    """The base model's revision, and the names of its files that are fetched."""
    try:
        found = hub_revision("model", place.hub_id, revision=place.revision, token=token)
    except SourceNotFoundError as error:
        advice = f"Name another one with {adapter.keys.both_ways}, or set HF_TOKEN if it is private."
        raise SourceNotFoundError(f"The adapter's base model: {error.problem}", advice) from error
    except HubUnreachableError as error:
        advice = f"Try again when the hub answers, or say where it is on this disk with {adapter.keys.base}."
        raise HubUnreachableError(f"The adapter's base model: {error.problem}", advice) from error
    names = model_file_names(file.path for file in found.files)
    _demand_base(names, found.origin, adapter)
    return found, names
