"""Identify sources on the hub by their commits, without querying the hub: the content of a commit never changes.

The digests are those of `tasks.sources.resolve`, which fetches the files.
"""

from collections.abc import Iterator

from containers.contracts.spec import StageInput
from tasks.config.sources import COMMIT, DatasetSource, ModelSource, RowSource
from tasks.sources.hub import RepoKind, flat_root, hub_revision
from tasks.sources.local import ResolvedInput, data_parts, find_reader, resolve_file


class BranchMayHaveMovedError(Exception):
    """The revision is no commit, so only the hub knows its present commit."""

    def __init__(self, hub_id: str, revision: str) -> None:
        super().__init__(f"not known until the hub is queried: `{revision}` of {hub_id} may have moved")


def commit_of_now(kind: RepoKind, hub_id: str, revision: str, *, token: str | None) -> str:
    """Return the revision if it is a commit, else the commit that the hub has for the branch or tag.

    Raises:
        SourceError: the hub does not say.
    """
    if COMMIT.fullmatch(revision):
        return revision
    return hub_revision(kind, hub_id, revision=revision, token=token).commit


def pinned_model_input(source: ModelSource, *, name: str) -> StageInput:
    """Input `name` for the model of a hub commit. Does not check whether it was fetched.

    Raises:
        BranchMayHaveMovedError: the source names a branch or a tag.
    """
    return _input("model", source, name=name)


def pinned_dataset_inputs(source: DatasetSource, *, section: str = "dataset") -> tuple[StageInput, ...]:
    """Inputs for the data files, named as in `tasks.sources.resolve.resolve_dataset`. Does not query the hub.

    Raises:
        BranchMayHaveMovedError: a source names a branch or a tag.
        SourceError: a local file cannot be read.
    """
    return tuple(found for name, part in source.parts for found in _rows(name, part, section=section))


def _rows(name: str, source: RowSource, *, section: str) -> Iterator[StageInput]:
    for part in data_parts(name, source, section=section):
        if source.hub_id is None:
            yield _local(resolve_file(part.place, name=part.input_name))
        else:
            yield _input("dataset", source, name=part.input_name, pattern=part.place)
    reader = find_reader(name, source, section=section)
    if reader is not None:
        yield _local(reader)


def _local(found: ResolvedInput) -> StageInput:
    return StageInput(name=found.name, path=str(found.path), digest=found.digest, origin=found.origin)


def _input(kind: RepoKind, source: ModelSource | RowSource, *, name: str, pattern: str = "") -> StageInput:
    hub_id, revision = source.hub_id or "", source.revision or ""
    if not COMMIT.fullmatch(revision):
        raise BranchMayHaveMovedError(hub_id, revision)
    return StageInput(
        name=name,
        path=str(flat_root(kind, hub_id, revision)),
        digest=f"hub:{revision}:{pattern}" if pattern else f"hub:{revision}",
        origin=f"{hub_id}@{revision} {pattern}".rstrip(),
    )
