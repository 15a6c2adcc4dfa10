"""Resolve the suites of the certificate to inputs of a stage, `suite_<name>`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from containers.contracts.configs.suites import SuiteFile
from containers.contracts.spec import StageInput
from containers.data.formats.files import DATA_SUFFIXES
from containers.formatting import size
from tasks.config.sources import DatasetSource
from tasks.sources.errors import SourceError, SourceNotFoundError
from tasks.sources.hub import HubRevision, fetch_files, flat_folder, hub_revision
from tasks.sources.pinned import pinned_dataset_inputs
from tasks.sources.resolve import Probe, probe_file, probe_pairs, resolve_file


def suite_input_name(suite: SuiteFile) -> str:
    """Name of the suite's input."""
    return f"suite_{suite.name}"


def resolve_suite(suite: SuiteFile, *, token: str | None) -> StageInput:
    """Resolve the suite to a file or a folder of files; fetch it if it is not on this disk.

    Raises:
        SourceError: it is not there, may not be read, or is no data file.
    """
    name = suite_input_name(suite)
    if suite.hub_id is None:
        local = resolve_file(suite.path, name=name, key=_key(suite))
        return StageInput(name=name, path=str(local.path), digest=local.digest, origin=local.origin)
    with _told_of(suite):
        revision = _revision(suite, token=token)
        files = _data_files(revision, suite)
        folder = fetch_files(revision, files, token=token)
    return StageInput(
        name=name,
        path=str(folder / files[0] if len(files) == 1 else folder),
        digest=f"hub:{revision.commit}:{suite.path}",
        origin=f"{revision.origin} {suite.path}",
    )


def pinned_suite(suite: SuiteFile) -> StageInput:
    """Like `resolve_suite`, without querying the hub. Does not check whether the suite was fetched.

    Raises:
        BranchMayHaveMovedError: the suite names a branch or a tag of the hub.
        SourceError: as `resolve_suite`, for a local suite.
    """
    if suite.hub_id is None:
        return resolve_suite(suite, token=None)
    (found,) = pinned_dataset_inputs(DatasetSource(hub_id=suite.hub_id, revision=suite.revision, train=suite.path))
    return found.model_copy(update={"name": suite_input_name(suite)})


def probe_suite(suite: SuiteFile, *, token: str | None) -> Probe:
    """Check that the suite exists, in seconds and without fetching it; for local pairs, also their first rows.

    Raises:
        SourceError: as `resolve_suite` would.
    """
    if suite.hub_id is None:
        probe = probe_pairs if suite.benchmark == "pairs" else probe_file
        return probe(suite.path, key=_key(suite))
    with _told_of(suite):
        revision = _revision(suite, token=token)
        files = _data_files(revision, suite)
    num_bytes = sum(file.size_bytes for file in revision.files if file.path in files)
    here = flat_folder("dataset", revision.hub_id, revision.commit, files).is_dir()
    found = f"{revision.origin} {suite.path} ({size(num_bytes)}{', fetched' if here else ''})"
    return Probe(found, 0 if here else num_bytes)


@contextmanager
def _told_of(suite: SuiteFile) -> Iterator[None]:
    """Reword the hub's errors about `dataset` so that they name the suite.

    Raises:
        SourceError: the one that was raised inside, reworded.
    """
    try:
        yield
    except SourceError as error:
        if error.problem.startswith(_key(suite)):
            raise
        advice = error.advice.replace("`--set 'dataset={train: FILE, validation: FILE}'`", "its file as `path`")
        advice = re.sub(r"\bdataset\.(hub_id|revision)\b", r"its \1", advice)
        raise type(error)(f"{_key(suite)}: {error.problem}", advice) from error


def _key(suite: SuiteFile) -> str:
    return f"evaluate_reward_model.suites {suite.name}"


def _revision(suite: SuiteFile, *, token: str | None) -> HubRevision:
    return hub_revision("dataset", suite.hub_id or "", revision=suite.revision or "", token=token)


def _data_files(revision: HubRevision, suite: SuiteFile) -> tuple[str, ...]:
    files = tuple(sorted(file.path for file in revision.matching((suite.path,)) if file.path.endswith(DATA_SUFFIXES)))
    if files:
        return files
    there = ", ".join(sorted(file.path for file in revision.files if file.path.endswith(DATA_SUFFIXES))[:10])
    raise SourceNotFoundError(
        f"{_key(suite)}: no data file of {revision.origin} matches {suite.path!r}.",
        f"Wanted: {', '.join(DATA_SUFFIXES)}; it holds: {there or 'none of these'}.",
    )
