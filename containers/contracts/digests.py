"""Digests of files, folders and manifests, for both sides of the boundary. Imports standard library and contract."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path

from containers.contracts.manifest import FileEntry, Manifest
from containers.contracts.names import DESCRIBING_FILES, MANIFEST_FILE

# Files from this size on also get a digest of samples, which takes milliseconds to compute.
SAMPLED_FROM_BYTES = 64 * 1024 * 1024
_SAMPLE_BYTES = 1024 * 1024
_NUM_SAMPLES = 16


class UnsafeFileError(Exception):
    """A folder holds something that is neither a regular file nor a folder, or a link that leads elsewhere."""


class DamagedArtifactError(Exception):
    """An artifact does not match its manifest; the message names the file."""


def open_regular(path: Path | str) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        OSError: there is none, or it is a symbolic link.
        UnsafeFileError: it is a FIFO, a device or a folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeFileError(f"{path} is not a regular file.")
    return os.fdopen(descriptor, "rb")


def file_sha256(path: Path | str) -> str:
    """Hexadecimal sha256 of a regular file's bytes; raises as `open_regular`."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sample_sha256(path: Path | str) -> str:
    """Hexadecimal sha256 over a file's size and sixteen blocks of 1 MiB from its beginning to its end.

    It detects a file that was cut, replaced or not written to its end; it misses a single flipped bit between blocks.
    """
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        digest.update(str(size).encode())
        last = max(0, size - _SAMPLE_BYTES)
        for number in range(_NUM_SAMPLES):
            stream.seek(last * number // (_NUM_SAMPLES - 1))
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def regular_files(folder: Path) -> Iterator[Path]:
    """Every regular file below `folder`, sorted by relative path.

    Raises:
        UnsafeFileError: there is a symbolic link, FIFO, device or socket. A link in a stage's output leaks host
            files when it is copied, and a FIFO hangs its reader.
    """
    for name in _regular_files(str(folder)):
        yield folder / name


def _regular_files(folder: str, within: str = "") -> Iterator[str]:
    """As `regular_files`, but as text relative to the top folder: a `Path` costs more than reading a small file."""
    for entry in sorted(os.scandir(f"{folder}/{within}"), key=lambda item: item.name):
        if entry.is_symlink():
            raise UnsafeFileError(f"{entry.path} is a symbolic link; a stage's output holds regular files only.")
        if entry.is_dir(follow_symlinks=False):
            yield from _regular_files(folder, f"{within}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            yield f"{within}{entry.name}"
        else:
            raise UnsafeFileError(f"{entry.path} is neither a regular file nor a folder.")


def file_entries(folder: Path) -> tuple[FileEntry, ...]:
    """Path, size and sha256 of every file below `folder` except the manifest."""
    return tuple(_file_entry(path, folder) for path in regular_files(folder) if path != folder / MANIFEST_FILE)


def _file_entry(path: Path, folder: Path) -> FileEntry:
    size = path.stat().st_size
    sample = sample_sha256(path) if size >= SAMPLED_FROM_BYTES else ""
    name = path.relative_to(folder).as_posix()
    return FileEntry(path=name, size_bytes=size, sha256=file_sha256(path), sample_sha256=sample)


def content_digest(entries: Iterable[FileEntry]) -> str:
    """`sha256:…` over the sorted paths, sizes and digests: the identity of an artifact's content."""
    digest = hashlib.sha256()
    for entry in sorted(entries, key=lambda item: item.path):
        digest.update(f"{entry.path}\0{entry.size_bytes}\0{entry.sha256}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def artifact_digest(manifest: Manifest) -> str:
    """`sha256:…` of the files that later stages use; files that only describe the result are left out.

    So if a filter looks for one more suite and drops no more rows, its digest stays the same, and no model is trained
    again. The manifest still lists every file.
    """
    return content_digest(entry for entry in manifest.files if not entry.path.startswith(DESCRIBING_FILES))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an artifact folder.

    Raises:
        DamagedArtifactError: there is none, or it cannot be read.
    """
    path = f"{folder}/{MANIFEST_FILE}"
    try:
        with open(path, "rb", buffering=0) as stream:  # text path, unbuffered: ten thousand are read in a row
            return Manifest.model_validate_json(stream.read())
    except FileNotFoundError as error:
        raise DamagedArtifactError(f"{path} is missing: the artifact was never finished.") from error
    except ValueError as error:
        raise DamagedArtifactError(f"{path} cannot be read: {error}") from error


def verify_artifact(folder: Path, *, whole_up_to_bytes: int | None = None) -> Manifest:
    """Compare presence, size and sha256 of every file with the manifest of `folder`, and return the manifest.

    Args:
        whole_up_to_bytes: larger files are compared by size and samples, if the manifest has samples; None: no file.

    Raises:
        DamagedArtifactError: a file is missing, changed or not listed; the message names it.
    """
    manifest = read_manifest(folder)
    try:
        found = set(_regular_files(str(folder)))
        found.discard(MANIFEST_FILE)
        for wanted in manifest.files:
            if wanted.path not in found:
                raise DamagedArtifactError(f"{folder}/{wanted.path} is missing.")
            found.remove(wanted.path)
            _compare(f"{folder}/{wanted.path}", wanted, whole_up_to_bytes=whole_up_to_bytes)
    except (UnsafeFileError, OSError) as error:
        raise DamagedArtifactError(f"{folder} cannot be verified: {error}") from error
    if found:
        raise DamagedArtifactError(f"{folder}/{min(found)} is not in the manifest.")
    return manifest


def _compare(path: str, wanted: FileEntry, *, whole_up_to_bytes: int | None) -> None:
    size = os.stat(path).st_size  # noqa: PTH116 - as `_regular_files`
    if size != wanted.size_bytes:
        raise DamagedArtifactError(f"{path} has {size} bytes; the manifest says {wanted.size_bytes}.")
    sampled = whole_up_to_bytes is not None and size > whole_up_to_bytes and bool(wanted.sample_sha256)
    digest, said = (sample_sha256(path), wanted.sample_sha256) if sampled else (file_sha256(path), wanted.sha256)
    if digest != said:
        what = "a sample of it" if sampled else "sha256"
        raise DamagedArtifactError(f"{path} was changed: {what} is {digest[:12]}…, the manifest says {said[:12]}…")


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees all of it or nothing, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the names in the folder to disk, so that a rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
