"""Which versions of libraries an image holds: the image itself is asked, once."""

import json
import logging
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from containers.contracts.digests import write_atomically
from containers.launch.docker.cleanup import current_owner
from containers.launch.docker.container import CONNECTION_ERRORS
from containers.launch.docker.runtime import connect

logger = logging.getLogger(__name__)

_COMMAND = ("python", "-P", "-m", "containers.contracts.programs")


def image_libraries(image_digest: str, names: Iterable[str], *, folder: Path | None) -> dict[str, str]:
    """Library → version in the image, with `python`; empty where the image cannot say.

    Args:
        image_digest: of an image on the daemon's machine.
        folder: keeps what an image said, which never changes; None: nothing does.

    Raises:
        DaemonUnreachableError: no daemon answers.
    """
    wanted = sorted(names)
    path = None if folder is None else folder / f"{image_digest.removeprefix('sha256:')}.json"
    known = _kept(path)
    if not known.keys() >= set(wanted):
        known = _asked(image_digest, wanted)
        if known and path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(known, indent=1, sort_keys=True))
    return {name: known[name] for name in ("python", *wanted) if name in known}


def _kept(path: Path | None) -> dict[str, str]:
    try:
        return {} if path is None else dict(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def _asked(image_digest: str, names: list[str]) -> dict[str, str]:
    with closing(connect()) as client:
        try:
            said = client.containers.run(
                image_digest,
                [*_COMMAND[1:], *names],
                entrypoint=_COMMAND[0],
                network_mode="none",
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                user="65534:65534",
                labels=current_owner().labels(),
                remove=True,
            )
            return {str(name): str(version) for name, version in json.loads(said).items()}
        except (*CONNECTION_ERRORS, ValueError, AttributeError) as error:
            logger.warning("The image %s does not say which libraries it holds: %s", image_digest, error)
            return {}
