"""The manifest of an artifact, which is a folder of regular files; the manifest is written last."""

from pydantic import Field

from containers.contracts.base import Frozen
from containers.contracts.configs.parts.ladder import Fallback
from containers.contracts.names import ProgramName
from containers.contracts.outcome import Metric


class FileEntry(Frozen):
    """One regular file; `path` is relative to the artifact folder, with forward slashes."""

    path: str = Field(min_length=1)
    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    sample_sha256: str = Field(
        "", pattern=r"^([0-9a-f]{64})?$", description="Over size and blocks spread over a large file; empty: small"
    )


class LineageEntry(Frozen):
    """One input of the stage: its name in the spec, its digest, and its origin as text."""

    name: str
    digest: str
    origin: str = ""


class Manifest(Frozen):
    """The last file that a stage writes into its output; the artifact's digest is a hash over `files`."""

    stage: ProgramName
    key: str
    files: tuple[FileEntry, ...]
    metrics: tuple[Metric, ...] = ()
    lineage: tuple[LineageEntry, ...] = ()
    ladder: tuple[Fallback, ...] = Field((), description="How the attempt that made it differed from the planned work")
    unlisted: tuple[str, ...] = Field(
        (), description="Sources that the stage loaded without being part of its key: a defect of this package"
    )
    created_at: str = Field(description="UTC, ISO 8601")
