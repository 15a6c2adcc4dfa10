"""Find and remove containers of dead runs that no other run took over; other containers are not touched."""

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

from containers.contracts.names import EVENTS_FILE
from containers.contracts.stop_grace import SHORTEST_S, stop_grace
from containers.launch.docker.container import DAEMON_ERRORS
from containers.launch.lease import LOCK_LABEL, taken_if_free

logger = logging.getLogger(__name__)

OWNER_PID_LABEL = "rlhf.owner_pid"
OWNER_START_LABEL = "rlhf.owner_start"
OWNER_HOST_LABEL = "rlhf.owner_host"
STAGE_LABEL = "rlhf.stage"
RUN_NAME_LABEL = "rlhf.run_name"
RUN_ID_LABEL = "rlhf.run_id"


@dataclass(frozen=True)
class Owner:
    """The process that started a container.

    A process id alone is reused after a reboot or a wrap-around, and has another meaning in another container.
    So `start` is the boot id and the process's start time, and `host` the host name and the namespace of the ids.
    """

    host: str
    pid: int
    start: str

    def labels(self) -> dict[str, str]:
        """Labels for a container that this process starts."""
        return {OWNER_HOST_LABEL: self.host, OWNER_PID_LABEL: str(self.pid), OWNER_START_LABEL: self.start}

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition(' ')[0] or 'an unknown host'}"


def current_owner() -> Owner:
    """This process."""
    return Owner(host=_host(), pid=os.getpid(), start=_process_start(os.getpid()))


def owner_of(labels: Mapping[str, str]) -> Owner | None:
    """The process that started the container with these labels; None where it is not ours."""
    pid = labels.get(OWNER_PID_LABEL, "")
    if STAGE_LABEL not in labels or not pid.isdigit():
        return None
    return Owner(host=labels.get(OWNER_HOST_LABEL, ""), pid=int(pid), start=labels.get(OWNER_START_LABEL, ""))


def owner_is_dead(labels: Mapping[str, str], *, owner: Owner) -> bool:
    """Whether the container is ours, was started on this host, and its starter is dead.

    Args:
        owner: this process; False for another host's containers, since its processes cannot be seen from here.
    """
    return not why_left_alone(labels, owner=owner, is_free=True)


def lock_of(labels: Mapping[str, str]) -> Path | None:
    """The lock of the key that the container works on; None where its labels name none."""
    lock = labels.get(LOCK_LABEL, "")
    return Path(lock) if lock else None


def why_left_alone(labels: Mapping[str, str], *, owner: Owner, is_free: bool) -> str:
    """Why the container is no leftover of a dead run; empty where it is one.

    Args:
        is_free: whether no process holds the lock of its key. The owner label alone is not enough: labels cannot
            change when another run takes the container over.
    """
    starter = owner_of(labels)
    if starter is None:
        return "it is not ours"
    if starter.host != owner.host:
        return "another host started it, whose processes cannot be seen from here"
    if _process_start(starter.pid) == starter.start:
        return "its owner lives"
    return "" if is_free else "another run has taken it over, or works on the same key"


@dataclass(frozen=True)
class StageContainer:
    """A container of ours, as the reaper sees it.

    Attributes:
        run: name and id.
        owner: the process that started it, as text.
        age_s: since its start, or since its creation where it never started.
        left_alone: why the reaper leaves it; empty where it is a leftover.
    """

    name: str
    stage: str
    run: str
    owner: str
    status: str
    age_s: float
    left_alone: str


def remove_leftovers(
    client: docker.DockerClient,
    *,
    owner: Owner,
    stop_grace_s: float | None = None,
    concerns: Callable[[Mapping[str, str]], bool] = lambda labels: True,
    dry_run: bool = False,
    tell: Callable[[StageContainer, bool], None] = lambda found, removed: None,
) -> list[str]:
    """Stop and remove containers of dead runs; a running one gets time to save its state.

    Each is removed under the lock of its key, so that no run takes it over at the same moment.

    Args:
        stop_grace_s: time for a running one, until it is killed; None: from the times of its own steps and saves.
        concerns: whether to look at a container with these labels.
        dry_run: stop and remove nothing.
        tell: gets each container that was looked at, and whether it was removed.

    Returns:
        The names of the removed containers.
    """
    names = []
    for container in client.containers.list(all=True, filters={"label": STAGE_LABEL}, ignore_removed=True):
        if owner_of(container.labels) is None or not concerns(container.labels):
            continue
        with taken_if_free(lock_of(container.labels)) as is_free:
            found = _seen(container, owner=owner, is_free=is_free)
            is_removed = not (dry_run or found.left_alone) and _removed(
                container, stop_grace_s=grace_s(container.labels) if stop_grace_s is None else stop_grace_s
            )
        tell(found, is_removed)
        if is_removed:
            logger.warning("Removed %s: the run that started it is gone.", container.name)
            names.append(str(container.name))
    return names


def processes_of_leftovers(
    client: docker.DockerClient, *, owner: Owner, concerns: Callable[[Mapping[str, str]], bool]
) -> frozenset[int]:
    """Process ids, as the daemon's host counts them, of all running containers that dead runs left."""
    found: set[int] = set()
    for container in client.containers.list(filters={"label": STAGE_LABEL}, ignore_removed=True):
        if not concerns(container.labels):
            continue
        with taken_if_free(lock_of(container.labels)) as is_free:
            is_left = not why_left_alone(container.labels, owner=owner, is_free=is_free)
        if is_left:
            top = container.top()
            found |= {int(row[top["Titles"].index("PID")]) for row in top["Processes"] or ()}
    return frozenset(found)


def remove_container(container: Container, *, stop_grace_s: float) -> bool:
    """Stop the container with time to save, and remove it. Returns False where another process was faster."""
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


def grace_s(labels: Mapping[str, str]) -> float:
    """Seconds that the container's stage may take to stop, from its events in the folder that its lock names."""
    lock = lock_of(labels)
    return SHORTEST_S if lock is None else stop_grace(lock.with_suffix("") / EVENTS_FILE).seconds


def _removed(container: Container, *, stop_grace_s: float) -> bool:
    """Remove the container; a failure is logged, so that the other containers are still removed."""
    try:
        return remove_container(container, stop_grace_s=stop_grace_s)
    except DAEMON_ERRORS as error:
        logger.warning("%s could not be removed: %s", container.name, error)
        return False


def age_s(attributes: Mapping[str, Any]) -> float:
    """Seconds that the container has run so far, or ran in all; since its creation where it never started."""
    state = attributes.get("State") or {}
    started = _moment(state.get("StartedAt")) or _moment(attributes.get("Created"))
    ended = _moment(state.get("FinishedAt")) if state.get("Status") in ("exited", "dead") else None
    return 0.0 if started is None else max(0.0, (ended or time.time()) - started)


def _seen(container: Container, *, owner: Owner, is_free: bool) -> StageContainer:
    labels = container.labels
    return StageContainer(
        name=str(container.name),
        stage=labels[STAGE_LABEL],
        run=f"{labels.get(RUN_NAME_LABEL, '')} {labels.get(RUN_ID_LABEL, '')}".strip() or "unknown",
        owner=str(owner_of(labels)),
        status=str(container.status),
        age_s=age_s(container.attrs),
        left_alone=why_left_alone(labels, owner=owner, is_free=is_free),
    )


def _moment(text: object) -> float | None:
    """Docker's time in seconds since the epoch; None for its zero time, which means never."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return None if moment.year < 2000 else moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()


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
    # The program's name is in brackets and may hold spaces and brackets; fields are counted after the last bracket.
    fields = status.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return "" if state in "ZX" else f"{boot}:{started}"
