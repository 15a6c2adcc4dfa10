"""The format version of a store. A store that a newer version of this package wrote is refused, never guessed at.

An older package could not read the newer one's run history, and `rlhf cache gc` would treat the artifacts as unused.
"""

from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from containers.contracts.digests import write_atomically
from tasks.config.errors import ConfigError

# Increase it when older packages can no longer read the store: its folders, manifests or run history.
STORE_FORMAT = 1
STORE_FILE = "STORE.json"


class NewerStoreError(ConfigError):
    """A newer version of this package wrote the store; this one leaves it alone."""


class StoreMark(BaseModel):
    """The version that last wrote the store. A newer version may add keys, so unknown ones are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int
    written_by: str = "an unknown version"


def require_known_store(store_dir: Path) -> None:
    """Refuse a store that this version cannot read. A store without a mark is an old one, and accepted.

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
            f'write {{"format": {STORE_FORMAT}}} into it if this version wrote the store.'
        ) from error
    if mark.format > STORE_FORMAT:
        raise NewerStoreError(
            f"The store {store_dir} was written by rlhf-flows {mark.written_by} (store format {mark.format}), and this "
            f"is {_own_version()} (format {STORE_FORMAT}), which cannot read it. Use that version or a newer one, or "
            "another run.store_dir; nothing was changed."
        )


def mark_store(store_dir: Path) -> None:
    """Record that this version writes the store. Call `require_known_store` first."""
    mark = StoreMark(format=STORE_FORMAT, written_by=_own_version()).model_dump_json()
    path = store_dir / STORE_FILE
    if not path.is_file() or path.read_text(encoding="utf-8") != mark:
        write_atomically(path, mark)


def _own_version() -> str:
    return metadata.version("rlhf-flows")
