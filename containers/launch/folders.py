"""Prepares the two folders of an attempt, so that the stage can write one of them and everything can be collected."""

import os
from pathlib import Path

from containers.contracts.digests import write_atomically
from containers.contracts.names import OUTCOME_FILE, RANK_FAILURES, SPEC_FILE
from containers.contracts.spec import StageSpec
from containers.launch.base import InputUnusableError, LaunchRequest

# Where the orchestrator is root the stage still is not: an ordinary id.
_STAGE_UID = 1000


def stage_user(launch: LaunchRequest) -> tuple[int, int]:
    """The uid and gid as which a container's stage runs: the owner of its work folder, but never root.

    Both folders exist afterwards.

    Raises:
        InputUnusableError: the work folder belongs to another user, and this one may not change that.
    """
    launch.spec_folder.mkdir(parents=True, exist_ok=True)
    launch.work_folder.mkdir(parents=True, exist_ok=True)
    status = launch.work_folder.stat()
    if os.geteuid() not in (0, status.st_uid):
        raise InputUnusableError(
            f"{launch.work_folder} belongs to user {status.st_uid}, and this is user {os.geteuid()}: the stage's files "
            "could not be collected afterwards. Remove it, or start the run as its owner."
        )
    return (status.st_uid, status.st_gid) if status.st_uid else (_STAGE_UID, _STAGE_UID)


def prepare_folders(launch: LaunchRequest, spec: StageSpec, *, user: tuple[int, int] | None = None) -> Path:
    """Write spec.json, take an older attempt's outcome away, and give the work folder to the stage's user.

    Args:
        spec: as the stage sees it.
        user: uid and gid of the stage, where it is another user than this process.

    Returns:
        The spec's path on the host.
    """
    spec_file = launch.spec_folder / SPEC_FILE
    write_atomically(spec_file, spec.model_dump_json(indent=2))
    for stale in (launch.work_folder / OUTCOME_FILE, *launch.work_folder.glob(RANK_FAILURES)):
        stale.unlink(missing_ok=True)
    if user is not None:
        launch.spec_folder.chmod(0o755)
        spec_file.chmod(0o644)
        if os.geteuid() == 0:
            _hand_over(launch.work_folder, *user)
    return spec_file


def _hand_over(folder: Path, uid: int, gid: int) -> None:
    """Change owners below `folder`, following no link; an earlier attempt may have run as somebody else."""
    os.chown(folder, uid, gid)
    for parent, folders, files in os.walk(folder, followlinks=False):
        for name in (*folders, *files):
            os.chown(Path(parent) / name, uid, gid, follow_symlinks=False)
