"""Which version of this package last wrote a store: one that is newer than this one is refused, never guessed at.

An older package would not read what a newer one remembers of its runs, and `rlhf cache gc` would take their artifacts
for unwanted.
"""

from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from containers.contracts.digests import write_atomically
from tasks.config.errors import ConfigError

# Raised when an older package could no longer read the store: its folders, manifests, or what runs remember.
STORE_FORMAT = 1
STORE_FILE = "STORE.json"


class NewerStoreError(ConfigError):
    """A newer version of this package wrote the store; this one leaves it alone."""


class StoreMark(BaseModel):
    """Who wrote the store last; a newer version may add keys, so unknown ones are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int
    written_by: str = "an unknown version"


def require_known_store(store_dir: Path) -> None:
    """Return where this version can read the store; one without a mark is from before there was one.

    Raises:
        NewerStoreError: a newer version wrote it, or its mark cannot be read.
    """
    path = store_dir / STORE_FILE
    try:
        mark = StoreMark.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValidationError) as error:
        raise NewerStoreError(
            f"{path} says which version wrote the store, and cannot be read ({type(error).__name__}). Restore it, or "
            f'write {{"format": {STORE_FORMAT}}} into it where this version wrote the store.'
        ) from error
    if mark.format > STORE_FORMAT:
        raise NewerStoreError(
            f"The store {store_dir} was written by rlhf-flows {mark.written_by} (store format {mark.format}), and this "
            f"is {_own_version()} (format {STORE_FORMAT}), which cannot read it. Use that version or a newer one, or "
            "another run.store_dir; nothing was changed."
        )


def mark_store(store_dir: Path) -> None:
    """Note that this version writes the store; it was asked before whether it may."""
    mark = StoreMark(format=STORE_FORMAT, written_by=_own_version()).model_dump_json()
    path = store_dir / STORE_FILE
    if not path.is_file() or path.read_text(encoding="utf-8") != mark:
        write_atomically(path, mark)


def _own_version() -> str:
    return metadata.version("rlhf-flows")
