"""Finds and removes our own leftovers: containers whose owner died without cleaning up. Never touches any other."""

import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.models.containers import Container

from containers.launch.runtime import STOP_GRACE_S

logger = logging.getLogger(__name__)

OWNER_PID_LABEL = "rlhf.owner_pid"
OWNER_START_LABEL = "rlhf.owner_start"
OWNER_HOST_LABEL = "rlhf.owner_host"
STAGE_LABEL = "rlhf.stage"


@dataclass(frozen=True)
class Owner:
    """The process that started a container.

    A process id alone comes back after a reboot or a wrap-around, and means something else in another container:
    `start` is the boot and the process's start in it, `host` the host name and the namespace that counts the ids.
    """

    host: str
    pid: int
    start: str

    def labels(self) -> dict[str, str]:
        """For a container that this process starts."""
        return {OWNER_HOST_LABEL: self.host, OWNER_PID_LABEL: str(self.pid), OWNER_START_LABEL: self.start}


def current_owner() -> Owner:
    """This process."""
    return Owner(host=_host(), pid=os.getpid(), start=_process_start(os.getpid()))


def owner_of(labels: Mapping[str, str]) -> Owner | None:
    """Who started the container with these labels; None where it is not one of ours."""
    pid = labels.get(OWNER_PID_LABEL, "")
    if STAGE_LABEL not in labels or not pid.isdigit():
        return None
    return Owner(host=labels.get(OWNER_HOST_LABEL, ""), pid=int(pid), start=labels.get(OWNER_START_LABEL, ""))


def is_abandoned(labels: Mapping[str, str], *, owner: Owner) -> bool:
    """Whether the container is ours, from this host, and the process that started it is no more.

    Args:
        owner: this process; what another host started is not judged, since its processes cannot be seen from here.
    """
    starter = owner_of(labels)
    if starter is None or starter.host != owner.host:
        return False
    return _process_start(starter.pid) != starter.start


def remove_leftovers(client: docker.DockerClient, *, owner: Owner, stop_grace_s: float = STOP_GRACE_S) -> list[str]:
    """Stop and remove containers of dead owners; a running one gets time to save its state.

    Returns:
        The names of those that were removed.
    """
    removed = []
    for container in client.containers.list(all=True, filters={"label": STAGE_LABEL}, ignore_removed=True):
        if is_abandoned(container.labels, owner=owner) and remove_container(container, stop_grace_s=stop_grace_s):
            logger.warning("Removed %s: the process that started it is gone.", container.name)
            removed.append(str(container.name))
    return removed


def remove_container(container: Container, *, stop_grace_s: float) -> bool:
    """Stop in good order and remove. Returns False where somebody else was faster."""
    try:
        if container.status in ("running", "paused"):
            if container.status == "paused":
                container.unpause()
            container.stop(timeout=int(stop_grace_s))
        container.remove(force=True, v=True)
    except docker.errors.NotFound:
        return False
    except docker.errors.APIError as error:
        if error.status_code != 409:
            raise
        return False
    return True


def _host() -> str:
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - it is no path
    except OSError:
        namespace = ""
    return f"{socket.gethostname()} {namespace}".strip()


def _process_start(pid: int) -> str:
    """`<boot id>:<clock ticks since boot>` of a live process; empty where there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    # The program's name stands in brackets and may hold spaces and brackets; fields are counted after the last one.
    fields = status.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return "" if state in "ZX" else f"{boot}:{started}"
