"""What a source on the hub is without asking the hub: a commit never changes, so its name says its content.

The digests are those of `tasks.sources`, which fetches what they name.
"""

import re
from typing import Literal

from containers.contracts.spec import StageInput
from tasks.hub import flat_root
from tasks.source_config import DatasetSource, ModelSource

_COMMIT = re.compile(r"[0-9a-f]{40}")


class BranchMayHaveMovedError(Exception):
    """The revision is no commit, so only the hub knows what it is now."""

    def __init__(self, hub_id: str, revision: str) -> None:
        super().__init__(f"not known before the hub was asked: `{revision}` of {hub_id} may have moved")


def pinned_model_input(source: ModelSource, *, name: str) -> StageInput:
    """The model of a hub commit as input of that name; whether it was fetched is not looked at.

    Raises:
        BranchMayHaveMovedError: the source names a branch or a tag.
    """
    return _input("model", source.hub_id or "", source.revision or "", name=name)


def pinned_dataset_inputs(source: DatasetSource) -> tuple[StageInput, ...]:
    """The data files of a hub commit, under the names that `tasks.sources.resolve_dataset` gives them.

    Raises:
        BranchMayHaveMovedError: the source names a branch or a tag.
    """
    hub_id, revision = source.hub_id or "", source.revision or ""
    patterns = {"train_data": source.train, "validation_data": source.validation}
    return tuple(
        _input("dataset", hub_id, revision, name=name, pattern=pattern)
        for name, pattern in patterns.items()
        if pattern is not None
    )


def _input(
    kind: Literal["model", "dataset"], hub_id: str, revision: str, *, name: str, pattern: str = ""
) -> StageInput:
    if not _COMMIT.fullmatch(revision):
        raise BranchMayHaveMovedError(hub_id, revision)
    return StageInput(
        name=name,
        path=str(flat_root(kind, hub_id, revision)),
        digest=f"hub:{revision}:{pattern}" if pattern else f"hub:{revision}",
        origin=f"{hub_id}@{revision} {pattern}".rstrip(),
    )
