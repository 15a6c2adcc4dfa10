"""Which versions of libraries an image holds: the image itself is asked, once."""

import json
import logging
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from docker.types import LogConfig

from containers.contracts.digests import write_atomically
from containers.launch.base import DaemonInfrastructureError
from containers.launch.docker.cleanup import current_owner
from containers.launch.docker.container import CONNECTION_ERRORS, removed
from containers.launch.docker.runtime import connect

logger = logging.getLogger(__name__)

_LIMIT_S = 120.0
# Python without our program, or none; anything else may be another next time.
_CANNOT_SAY = (1, 126, 127)
_COMMAND = ("python", "-P", "-m", "containers.contracts.programs")


def image_libraries(image_digest: str, names: Iterable[str], *, folder: Path | None) -> dict[str, str]:
    """Library → version in the image, with `python`; empty where the image cannot say.

    Args:
        image_digest: of an image on the daemon's machine.
        folder: keeps what an image said, which never changes; None: nothing does.

    Raises:
        DaemonUnreachableError: no daemon answers.
        DaemonInfrastructureError: it did not hand out the image's answer.
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
    """What the image says; empty where its program cannot be run in it, which is so each time.

    Raises:
        DaemonInfrastructureError: it may have answered, and the daemon did not hand the answer out.
    """
    with closing(connect()) as client:
        try:
            container = client.containers.create(
                image_digest,
                [*_COMMAND[1:], *names],
                entrypoint=_COMMAND[0],
                network_mode="none",
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                user="65534:65534",
                labels=current_owner().labels(),
                log_config=LogConfig(type=LogConfig.types.JSON),
            )
            try:
                container.start()
                # Not `containers.run`: it follows the log of a container that ends at once, and often misses all of it.
                code = container.wait(timeout=_LIMIT_S)["StatusCode"]
                said, complaint = container.logs(stderr=False), container.logs(stdout=False)
            finally:
                removed(container)
        except CONNECTION_ERRORS as error:
            raise DaemonInfrastructureError(
                f"The image {image_digest} was not asked for its libraries: {error}"
            ) from error
    if code:
        logger.warning(
            "The image %s does not say which libraries it holds: %s", image_digest, complaint.decode()[-300:]
        )
        return {}
    try:
        return {str(name): str(version) for name, version in json.loads(said).items()}
    except (ValueError, AttributeError) as error:
        raise DaemonInfrastructureError(
            f"The image {image_digest} was asked for its libraries, and the daemon handed out no answer: {error}"
        ) from error
