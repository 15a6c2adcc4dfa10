"""Whether the inputs of a stage can be mounted and read inside, asked before a container is made."""

import os
import stat
from pathlib import Path

from containers.contracts.spec import StageInput
from containers.launch.base import InputUnusableError

_MAX_REPORTED = 5


def check_inputs(inputs: tuple[StageInput, ...], *, uid: int, gid: int) -> None:
    """Return if every input exists, can be read by `uid:gid`, and holds no link that leads out of its mount.

    Raises:
        InputUnusableError: names the first few files and says what to do.
    """
    problems: list[str] = []
    for item in inputs:
        path = Path(item.path)
        if not path.exists():
            problems.append(f"`{item.name}`: {path} does not exist ({item.origin or 'no origin given'}).")
            continue
        root = path.resolve()
        files = [root] if root.is_file() else _below(root)
        problems += [f"`{item.name}`: {text}" for file in files if (text := _problem(file, root, uid=uid, gid=gid))]
        if len(problems) >= _MAX_REPORTED:
            break
    if problems:
        raise InputUnusableError("The container could not read its inputs.\n  " + "\n  ".join(problems[:_MAX_REPORTED]))


def _below(root: Path) -> list[Path]:
    paths = [root]
    for folder, folders, files in os.walk(root):
        paths += [Path(folder) / name for name in (*folders, *files)]
    return paths


def _problem(path: Path, root: Path, *, uid: int, gid: int) -> str:
    if path.is_symlink():
        inside = path.resolve().is_relative_to(root) and not path.readlink().is_absolute()
        if inside and path.exists():
            return ""
        return (
            f"{path} is a link to {path.readlink()}, which the container does not see. "
            "Copy the files instead of linking them (huggingface_hub: `local_dir`)."
        )
    status = path.stat()
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else 0)
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    if (status.st_mode >> shift) & needed == needed:
        return ""
    return f"{path} is not readable by user {uid}, as which the stage runs. Try: chmod -R a+rX {root}"
