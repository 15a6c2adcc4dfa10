"""Short names of a run's model and dataset, for names of runs: `qwen3-8b`, `helpsteer3@2f1a`. Pure."""

import re
from pathlib import PurePath

from tasks.config.sources import COMMIT, DatasetSource, ModelSource

_DIGEST_CHARACTERS = 4
_MAX_NAME_CHARACTERS = 40
# Generic names: local data with such a name gets that of the folder above.
_GENERIC_NAMES = frozenset({"train", "training", "data", "dataset", "preference", "preferences", "pairs"})


# Between the parts of a run's name.
SEPARATOR = " · "


def corrected_name(name: str, *, guessed: str, known: str) -> str:
    """Replace the guessed dataset in a name by the known one; another dataset stays as it is.

    The dataset is the second part, after the model. A model, profile or run of the same name is not replaced.
    """
    model, *rest = name.split(SEPARATOR)
    if rest[:1] != [guessed]:
        return name
    return SEPARATOR.join((model, known, *rest[1:]))


def model_label(source: ModelSource) -> str:
    """`Qwen/Qwen3-8B` as `qwen3-8b`; a local model by its folder's name."""
    return _short(source.hub_id or source.path or "")


def dataset_label(source: DatasetSource, *, digest: str = "") -> str:
    """`nvidia/HelpSteer3` at a commit as `helpsteer3@2f1a`; `demo/data/train.jsonl` as `demo@5f0c`.

    A mixture has the names of its sources.

    Args:
        digest: of the training data, as inputs of stages name it (`hub:<commit>`, `sha256:…`). Without it a branch
            is shown as written, and local data has no digest.
    """
    if source.mixture:
        return "+".join(part.name for part in source.mixture)[:_MAX_NAME_CHARACTERS]
    name = _short(source.hub_id) if source.hub_id else _telling(source.train)
    _, _, known = digest.partition(":")
    if known:
        return f"{name}@{known[:_DIGEST_CHARACTERS]}"
    if source.revision is None:
        return name
    revision = source.revision
    return f"{name}@{revision[:_DIGEST_CHARACTERS] if COMMIT.fullmatch(revision) else revision}"


def _telling(path: str) -> str:
    """The last part of a path that is not generic: file, or a folder above it."""
    names = [_short(part) for part in reversed(PurePath(path).parts)]
    return next((name for name in names if name not in _GENERIC_NAMES), names[0])


def _short(name: str) -> str:
    """The last part of a hub id or path, in lower case and without the endings of data files."""
    last = PurePath(name).name
    return re.sub(r"(\.(jsonl|json|parquet|gz))+$", "", last.lower())[:_MAX_NAME_CHARACTERS] or name
