"""With which versions each stage of a run was made last: what an upgrade changed, by name.

A stage's key holds one digest of its programs and their packages, which says that something changed and not what. This
lies beside the store's memory of runs, so that versions before it can still read that.
"""

import json
import logging
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from containers.contracts.digests import write_atomically
from containers.contracts.identity import package_versions
from containers.contracts.names import StageName
from tasks.run.runtime import CodeIdentity

logger = logging.getLogger(__name__)

_FOLDER = "versions"
_DIGEST_CHARACTERS = 12
_FILE: TypeAdapter[dict[StageName, dict[str, str]]] = TypeAdapter(dict[StageName, dict[str, str]])

Versions = Mapping[str, str]


def present_versions(code: CodeIdentity) -> dict[str, str]:
    """What a stage would be made with now: this package, and the image, or the programs and packages of the process."""
    own = {"rlhf-flows": metadata.version("rlhf-flows")}
    if code.image_digest:
        return {**own, "image": _short(code.image_digest)}
    return {**own, "stage programs": _short(code.stages_digest), **package_versions()}


def remember_versions(store_dir: Path, *, run_file: str, stage: StageName, versions: Versions) -> None:
    """Keep with what the run has the stage's artifact now.

    Args:
        run_file: name of the run's file in the store's memory.
    """
    path = store_dir / _FOLDER / run_file
    known = {**last_versions(store_dir, run_file=run_file), stage: dict(versions)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(known, indent=1))


def last_versions(store_dir: Path, *, run_file: str) -> dict[StageName, dict[str, str]]:
    """Stage → with what the run last had it; empty where that was never noted."""
    path = store_dir / _FOLDER / run_file
    try:
        return _FILE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        logger.warning("%s cannot be read; what an upgrade changed is not known by name: %s", path, error)
        return {}


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:_DIGEST_CHARACTERS]
