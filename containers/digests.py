"""Digests of files, folders and manifests. Pure standard library plus the contract; used on both sides of the wall."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from containers.contracts.manifest import FileEntry, Manifest
from containers.contracts.names import MANIFEST_FILE

_CHUNK_BYTES = 4 * 1024 * 1024


class UnsafeFileError(Exception):
    """A folder holds something that is neither a regular file nor a folder, or a link that leads elsewhere."""


class DamagedArtifactError(Exception):
    """An artifact does not match its manifest; the message names the file."""


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a regular file's bytes. Refuses symbolic links (OSError)."""
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise UnsafeFileError(f"{path} is not a regular file.")
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def regular_files(folder: Path) -> Iterator[Path]:
    """Every regular file below `folder`, sorted by relative path.

    Raises:
        UnsafeFileError: a symbolic link, FIFO, device or socket lies there. A link in a stage's output leaks host
            files when it is copied, and a FIFO hangs its reader.
    """
    for entry in sorted(os.scandir(folder), key=lambda item: item.name):
        path = Path(entry.path)
        if entry.is_symlink():
            raise UnsafeFileError(f"{path} is a symbolic link; a stage's output holds regular files only.")
        if entry.is_dir(follow_symlinks=False):
            yield from regular_files(path)
        elif entry.is_file(follow_symlinks=False):
            yield path
        else:
            raise UnsafeFileError(f"{path} is neither a regular file nor a folder.")


def file_entries(folder: Path) -> tuple[FileEntry, ...]:
    """Path, size and sha256 of every file below `folder` but the manifest."""
    return tuple(
        FileEntry(path=path.relative_to(folder).as_posix(), size_bytes=path.stat().st_size, sha256=file_sha256(path))
        for path in regular_files(folder)
        if path != folder / MANIFEST_FILE
    )


def content_digest(entries: Iterable[FileEntry]) -> str:
    """`sha256:…` over the sorted paths, sizes and digests: the identity of an artifact's content."""
    digest = hashlib.sha256()
    for entry in sorted(entries, key=lambda item: item.path):
        digest.update(f"{entry.path}\0{entry.size_bytes}\0{entry.sha256}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an artifact folder.

    Raises:
        DamagedArtifactError: there is none, or it cannot be read.
    """
    path = folder / MANIFEST_FILE
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise DamagedArtifactError(f"{path} is missing: the artifact was never finished.") from error
    except ValueError as error:
        raise DamagedArtifactError(f"{path} cannot be read: {error}") from error


def verify_artifact(folder: Path) -> Manifest:
    """The manifest of `folder`, after every file's presence, size and sha256 were compared with it.

    Raises:
        DamagedArtifactError: a file is missing, changed or not listed; the message names it.
    """
    manifest = read_manifest(folder)
    try:
        found = {entry.path: entry for entry in file_entries(folder)}
    except (UnsafeFileError, OSError) as error:
        raise DamagedArtifactError(f"{folder} cannot be verified: {error}") from error
    for wanted in manifest.files:
        entry = found.pop(wanted.path, None)
        if entry is None:
            raise DamagedArtifactError(f"{folder / wanted.path} is missing.")
        if entry.size_bytes != wanted.size_bytes:
            raise DamagedArtifactError(
                f"{folder / wanted.path} has {entry.size_bytes} bytes; the manifest says {wanted.size_bytes}."
            )
        if entry.sha256 != wanted.sha256:
            raise DamagedArtifactError(
                f"{folder / wanted.path} was changed: sha256 is {entry.sha256[:12]}…, the manifest says "
                f"{wanted.sha256[:12]}…"
            )
    if found:
        raise DamagedArtifactError(f"{folder / next(iter(found))} is not in the manifest.")
    return manifest


def source_digest(package: Path) -> str:
    """`sha256:…` over the sources below `package` that an image receives: what the stage programs are."""
    sources = (path for pattern in ("*.py", "*.jinja") for path in package.rglob(pattern))
    return content_digest(
        FileEntry(path=path.relative_to(package).as_posix(), size_bytes=path.stat().st_size, sha256=file_sha256(path))
        for path in sources
        if "__pycache__" not in path.parts and path.relative_to(package).parts[0] not in ("launch", "images")
    )


def write_atomically(path: Path, text: str) -> None:
    """Put `text` into `path` so that a reader sees all of it or nothing, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
