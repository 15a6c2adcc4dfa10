"""Containers that dead runs left behind: stopped in good order around a run, and by `rlhf reap`."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from containers.contracts.registries import RuntimeName
from containers.formatting import duration
from containers.launch.base import LaunchError
from containers.launch.docker.cleanup import (
    RUN_NAME_LABEL,
    StageContainer,
    current_owner,
    lock_of,
    processes_of_leftovers,
    remove_leftovers,
)
from containers.launch.docker.container import CONNECTION_ERRORS
from containers.launch.docker.runtime import connect
from tasks.display import current_display

logger = logging.getLogger(__name__)

_Concerns = Callable[[Mapping[str, str]], bool]


class NoDaemonError(Exception):
    """There is no daemon to ask for containers."""


def reap(say: Callable[[str], None], *, dry_run: bool = False) -> None:
    """Stop and remove the containers of dead runs, and say of every container of ours what it is and what was done.

    Raises:
        NoDaemonError: none answers.
    """
    try:
        client = connect()
    except LaunchError as error:
        raise NoDaemonError(
            f"No Docker daemon answers, so no container can be seen: {error.__cause__}. Start it "
            "(for example `systemctl start docker`), or set DOCKER_HOST."
        ) from error
    try:
        remove_leftovers(
            client,
            owner=current_owner(),
            dry_run=dry_run,
            tell=lambda found, removed: say(reaped_line(found, removed=removed, dry_run=dry_run)),
        )
    finally:
        client.close()


@contextmanager
def leftovers_reaped(run_name: str, *, store_dir: Path, runtime: RuntimeName) -> Iterator[None]:
    """Free what dead runs hold, before this run needs it; nothing is done where the runtime is not Docker.

    A container that this very run left when it died may still work for it. It is left to be taken over, and removed
    at the end of the block if no stage came for it.
    """

    def is_of_this_run(labels: Mapping[str, str]) -> bool:
        return may_be_taken_over(labels, run_name=run_name, store_dir=store_dir)

    if runtime != "docker":
        yield
        return
    _reap_quietly(lambda labels: not is_of_this_run(labels))
    try:
        yield
    finally:
        _reap_quietly(is_of_this_run)


def may_be_taken_over(labels: Mapping[str, str], *, run_name: str, store_dir: Path) -> bool:
    """Whether a container was started by a run of this name for this store."""
    lock = lock_of(labels)
    return labels.get(RUN_NAME_LABEL) == run_name and lock is not None and lock.is_relative_to(store_dir.resolve())


def processes_to_take_over(store_dir: Path) -> frozenset[int]:
    """Process ids of containers that died runs left at work in this store; a run that goes on with them leaves them."""
    store = store_dir.resolve()

    def is_in_store(labels: Mapping[str, str]) -> bool:
        lock = lock_of(labels)
        return lock is not None and lock.is_relative_to(store)

    try:
        client = connect()
        try:
            return processes_of_leftovers(client, owner=current_owner(), concerns=is_in_store)
        finally:
            client.close()
    except (LaunchError, *CONNECTION_ERRORS) as error:
        logger.warning("Containers of dead runs could not be looked for: %s", error)
        return frozenset()


def reaped_line(found: StageContainer, *, removed: bool, dry_run: bool = False) -> str:
    """What a container is and what was done, on one line."""
    done = "stopped and removed" if found.status in ("running", "paused") else "removed"
    if found.left_alone:
        done = f"left alone, {found.left_alone}"
    elif dry_run:
        done = f"would be {done}"
    elif not removed:
        done = "not removed, the daemon did not do it or somebody else was faster"
    return (
        f"{found.name}: {found.stage} of run {found.run}, started by {found.owner}, {duration(found.age_s)} old, "
        f"{found.status}: {done}"
    )


def _reap_quietly(concerns: _Concerns) -> None:
    """Say only what was removed; a daemon in trouble is told by the first stage that needs it."""

    def tell(found: StageContainer, removed: bool) -> None:
        if removed:
            current_display().say(f"A run that died left a container. {reaped_line(found, removed=removed)}.")

    try:
        client = connect()
        try:
            remove_leftovers(client, owner=current_owner(), concerns=concerns, tell=tell)
        finally:
            client.close()
    except (LaunchError, *CONNECTION_ERRORS) as error:
        logger.warning("Containers of dead runs could not be looked for: %s", error)
