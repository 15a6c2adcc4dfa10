"""The files of a split of a dataset on the hub, by the names that its page shows: subset and split.

The repository's README lists them under `configs`. Without that list the files' names tell, by the conventions of the
datasets library; a subset is then a folder. That library is no part of the orchestrator; a test compares with it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml
from fsspec.utils import glob_translate
from huggingface_hub import DatasetCard

from containers.data.formats.files import DATA_SUFFIXES
from containers.near_words import nearest_word
from tasks.sources.errors import SourceNotFoundError, UnusableSourceError
from tasks.sources.hub import HubRevision

README = "README.md"
DEFAULT_SUBSET = "default"

_SHARD = re.compile(r"data/(?P<split>\w+(?:[.-]\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_KEYWORDS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "dev", "val"},
    "test": {"test", "testing", "eval", "evaluation"},
}
_WORD_BREAKS = re.compile(r"[-._ 0-9]+")
_NAMES_SHOWN = 20

Splits = dict[str, tuple[str, ...]]


def split_files(
    revision: HubRevision, *, subset: str | None, split: str, key: str, read: Callable[[str], str]
) -> tuple[str, ...]:
    """The data files of that split, sorted.

    Args:
        subset: null: the one that is marked as default, or the only one.
        key: the split's key in the configuration, for messages.
        read: reads a text of the repository.

    Raises:
        SourceNotFoundError: there is no such subset or split; the message lists those that exist.
        UnusableSourceError: the split has files of other kinds only, or several subsets exist and none is chosen.
    """
    paths = [file.path for file in revision.files if _is_shown(file.path)]
    configs = _configs(read(README)) if README in {file.path for file in revision.files} else []
    splits = (
        _declared(configs, paths, subset, revision=revision, key=key)
        if configs
        else _conventional(paths, subset, revision=revision, key=key)
    )
    if split not in splits:
        raise _unknown(f"{key}: {revision.origin} has no split", split, splits, of="splits")
    files = tuple(sorted(path for path in splits[split] if path.endswith(DATA_SUFFIXES)))
    if not files:
        found = ", ".join(sorted(splits[split])[:3]) or "no file at all"
        raise UnusableSourceError(
            f"{key}: {revision.origin} has no data file in the split `{split}`, but {found}.",
            f"Wanted: {', '.join(DATA_SUFFIXES)}. Name other files in `train`, or read them with a `reader`.",
        )
    return files


def _configs(readme: str) -> list[Mapping[str, Any]]:
    """The subsets that the README's metadata lists; empty if it lists none that names files."""
    if not readme.lstrip().startswith("---"):
        return []
    try:
        listed = DatasetCard(readme).data.get("configs")
    except (ValueError, TypeError, yaml.YAMLError):
        return []
    named = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    return [item for item in named if "data_files" in item or "data_dir" in item]


def _declared(
    configs: Sequence[Mapping[str, Any]], paths: Sequence[str], subset: str | None, *, revision: HubRevision, key: str
) -> Splits:
    by_name = {str(item.get("config_name", DEFAULT_SUBSET)): item for item in configs}
    chosen = subset
    if chosen is None:
        marked = [name for name, item in by_name.items() if item.get("default") is True]
        named = [name for name in by_name if name == DEFAULT_SUBSET]
        chosen = next(iter([*marked, *named, *(by_name if len(by_name) == 1 else ())]), None)
    if chosen is None:
        raise UnusableSourceError(
            f"{key}: {revision.origin} has the subsets {_listed(by_name)}, and none is the default.",
            "Name one as `subset`.",
        )
    if chosen not in by_name:
        raise _unknown(f"{key}: {revision.origin} has no subset", chosen, by_name, of="subsets")
    item = by_name[chosen]
    folder = str(item.get("data_dir") or "").strip("/")
    if "data_files" not in item:
        return _by_convention(paths, folder)
    within = f"{folder}/" if folder else ""
    return {
        split: tuple(path for path in paths if any(_matches(path, f"{within}{pattern}") for pattern in patterns))
        for split, patterns in _patterns(item["data_files"]).items()
    }


def _patterns(given: object) -> dict[str, list[str]]:
    """Patterns by split, from any of the forms that a README may have."""
    if isinstance(given, Mapping):
        return {str(split): _texts(paths) for split, paths in given.items()}
    if isinstance(given, list) and given and all(isinstance(item, Mapping) for item in given):
        return {str(item.get("split", "train")): _texts(item.get("path")) for item in given}
    return {"train": _texts(given)}


def _texts(given: object) -> list[str]:
    return [str(item).removeprefix("./") for item in (given if isinstance(given, list) else [given])]


def _conventional(paths: Sequence[str], subset: str | None, *, revision: HubRevision, key: str) -> Splits:
    if subset is None or subset == DEFAULT_SUBSET:
        return _by_convention(paths, "")
    folders = {path.split("/")[0] for path in paths if "/" in path and path.endswith(DATA_SUFFIXES)}
    if subset not in folders:
        raise _unknown(f"{key}: {revision.origin} has no subset", subset, sorted(folders), of="subsets")
    return _by_convention(paths, subset)


def _by_convention(paths: Sequence[str], folder: str) -> Splits:
    """Splits by the names of shards, else of folders, else of files; else all data is the split `train`."""
    within = f"{folder}/" if folder else ""
    data = [path for path in paths if path.startswith(within) and path.endswith(DATA_SUFFIXES)]
    shards = [(match["split"], path) for path in data if (match := _SHARD.fullmatch(path.removeprefix(within)))]
    if shards:
        return {split: tuple(path for name, path in shards if name == split) for split, _ in shards}
    for parts in (_folders, _file):
        found = {
            split: tuple(path for path in data if any(_words(part) & words for part in parts(path, within)))
            for split, words in _KEYWORDS.items()
        }
        if any(found.values()):
            return {split: files for split, files in found.items() if files}
    return {"train": tuple(data)} if data else {}


def _folders(path: str, within: str) -> tuple[str, ...]:
    return PurePosixPath(path.removeprefix(within)).parts[:-1]


def _file(path: str, _within: str) -> tuple[str, ...]:
    return (PurePosixPath(path).name,)


def _words(name: str) -> set[str]:
    return set(_WORD_BREAKS.split(name))


def _matches(path: str, pattern: str) -> bool:
    return re.match(glob_translate(pattern), path) is not None


def _is_shown(path: str) -> bool:
    """Whether neither the file nor a folder above it is hidden."""
    *folders, name = PurePosixPath(path).parts
    return not name.startswith(".") and not any(folder.startswith((".", "__")) for folder in folders)


def _unknown(problem: str, name: str, known: Iterable[str], *, of: str) -> SourceNotFoundError:
    names = list(known)
    meant = nearest_word(name, names)
    hint = f"Did you mean `{meant}`? " if meant else ""
    return SourceNotFoundError(f"{problem} `{name}`.", f"{hint}Its {of}: {_listed(names) or 'none'}.")


def _listed(names: Iterable[str]) -> str:
    shown = [f"`{name}`" for name in names]
    more = [f"and {len(shown) - _NAMES_SHOWN:,} more"] if len(shown) > _NAMES_SHOWN else []
    return ", ".join(shown[:_NAMES_SHOWN] + more)
