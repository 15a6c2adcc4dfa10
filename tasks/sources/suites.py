"""Resolve the suites of the certificate, and standard sets, to inputs of a stage, `suite_<name>`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from containers.contracts.configs.answer_sets import StandardSet
from containers.contracts.configs.evaluate_reward_model import SuiteFile
from containers.contracts.spec import StageInput
from tasks.config.sources import DatasetSource
from tasks.sources.errors import SourceError
from tasks.sources.hub import HubRevision, fetch_files, hub_revision
from tasks.sources.local import folder_digest, readable_folder, resolve_file
from tasks.sources.pinned import pinned_dataset_inputs
from tasks.sources.resolve import Probe, matching_data_files, probe_file, probe_of_hub, probe_rows


def suite_input_name(suite: SuiteFile | StandardSet) -> str:
    """Name of the suite's input."""
    return f"suite_{suite.name}"


def resolve_suite(suite: SuiteFile | StandardSet, *, token: str | None) -> StageInput:
    """Resolve the suite to a file or a folder of files; fetch it if it is not on this disk.

    Raises:
        SourceError: it is not there, may not be read, or is no data file.
    """
    name = suite_input_name(suite)
    if isinstance(suite, StandardSet) and not suite.has_rows:  # a task's folder, with files of any kind
        folder = readable_folder(suite.path, key=_key(suite))
        return StageInput(name=name, path=str(folder), digest=folder_digest(folder), origin=str(folder))
    if suite.hub_id is None:
        local = resolve_file(suite.path, name=name, key=_key(suite))
        return StageInput(name=name, path=str(local.path), digest=local.digest, origin=local.origin)
    with _told_of(suite):
        revision, files = _files_on_hub(suite, token=token)
        folder = fetch_files(revision, files, token=token)
    return StageInput(
        name=name,
        path=str(folder / files[0] if len(files) == 1 else folder),
        digest=f"hub:{revision.commit}:{suite.path}",
        origin=f"{revision.origin} {suite.path}",
    )


def pinned_suite(suite: SuiteFile | StandardSet) -> StageInput:
    """Like `resolve_suite`, without querying the hub. Does not check whether the suite was fetched.

    Raises:
        BranchMayHaveMovedError: the suite names a branch or a tag of the hub.
        SourceError: as `resolve_suite`, for a local suite.
    """
    if suite.hub_id is None:
        return resolve_suite(suite, token=None)
    (found,) = pinned_dataset_inputs(DatasetSource(hub_id=suite.hub_id, revision=suite.revision, train=suite.path))
    return found.model_copy(update={"name": suite_input_name(suite)})


def probe_suite(suite: SuiteFile | StandardSet, *, token: str | None) -> Probe:
    """Check that the suite exists, in seconds and without fetching it; for local pairs, also their first rows.

    Raises:
        SourceError: as `resolve_suite` would.
    """
    if suite.hub_id is None:
        probe = probe_rows if suite.benchmark == "pairs" else probe_file
        return probe(suite.path, key=_key(suite))
    with _told_of(suite):
        revision, files = _files_on_hub(suite, token=token)
    return probe_of_hub(revision, files, shown=f"{revision.origin} {suite.path}", token=token)


@contextmanager
def _told_of(suite: SuiteFile | StandardSet) -> Iterator[None]:
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


def _key(suite: SuiteFile | StandardSet) -> str:
    section = "answer_sets.sets" if isinstance(suite, StandardSet) else "evaluate_reward_model.suites"
    return f"{section} {suite.name}"


def _files_on_hub(suite: SuiteFile | StandardSet, *, token: str | None) -> tuple[HubRevision, tuple[str, ...]]:
    revision = hub_revision("dataset", suite.hub_id or "", revision=suite.revision or "", token=token)
    return revision, matching_data_files(revision, suite.path, key=_key(suite))
