"""Follow a started container, also while its daemon restarts."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import docker
import requests
from docker.models.containers import Container

logger = logging.getLogger(__name__)

INSPECT_S = 1.0
# How long the daemon may be silent before the container counts as lost. A daemon restart with live-restore takes about
# ten seconds; containers keep running meanwhile.
LOST_AFTER_S = 120.0
_NEW_CONNECTION_LIMIT_S = 10
_SLOW_CONNECTION_S = 2.0

# Errors that a client gets while a daemon stops or starts (a broken `wait` is a ChunkedEncodingError).
DAEMON_ERRORS = (requests.exceptions.RequestException, docker.errors.DockerException)
CONNECTION_ERRORS = (*DAEMON_ERRORS, OSError)


class ContainerProgram:
    """Polls the state of one container; after a broken connection it tries again, and assumes no death.

    Args:
        log_client: a separate client for the thread that follows the log.
    """

    def __init__(self, container: Container, log_client: docker.DockerClient) -> None:
        self._container = container
        self._log_client = log_client
        self._next_inspect = 0.0
        self._silent_since: float | None = None
        self._log_over = threading.Event()
        self._closed = threading.Event()
        self._has_ended = False
        self._was_asked = False
        # The signal that the daemon has not accepted yet; empty: none.
        self._owed = ""
        # Why the container's end was never observed; empty where it was, or while it runs.
        self.problem = ""
        self.unreachable_s = 0.0

    def ended(self) -> bool:
        """Whether the container ended or is lost; asks the daemon once a second, and at once when the log ends."""
        now = time.monotonic()
        if self._has_ended or (now < self._next_inspect and not self._log_over.is_set()):
            return self._has_ended
        self._next_inspect = now + INSPECT_S
        self._log_over.clear()
        try:
            self._container.reload()
        except docker.errors.NotFound:
            self._give_up("the container was removed while it ran")
        except CONNECTION_ERRORS as error:
            self._wait_for_daemon(now, error)
        else:
            self._daemon_answers(now)
            self._send_what_is_owed()
            self._has_ended = self._container.status in ("exited", "dead") and not self._daemon_is_leaving(now)
        return self._has_ended

    def terminate(self) -> None:
        """Send SIGTERM, which the container's init passes on; send it again if the daemon was away."""
        # Once: a second SIGTERM ends a training at once, in the middle of its step or its save.
        if not self._was_asked:
            self._was_asked, self._owed = True, "SIGTERM"
            self._send_what_is_owed()

    def ask_for_stacks(self) -> None:
        """Send SIGUSR1, which the container's init passes on."""
        self._signal("SIGUSR1")

    def kill(self) -> None:
        """Send SIGKILL to all processes of the container; send it again if the daemon was away."""
        self._owed = "SIGKILL"
        self._send_what_is_owed()

    def close(self) -> None:
        """Stop following the log."""
        self._closed.set()

    @property
    def state(self) -> dict[str, Any]:
        """Docker's `State` at the last poll."""
        return dict(self._container.attrs.get("State") or {})

    def chunks(self) -> Iterator[bytes]:
        """Yield the log from its beginning; after a broken connection, continue where it stopped."""
        since: float | None = None
        while not self._closed.is_set():
            try:
                container = self._log_client.containers.get(str(self._container.id))
                with contextlib.closing(container.logs(stream=True, follow=True, since=since)) as stream:
                    for chunk in stream:
                        since = time.time()
                        yield chunk
                container.reload()
                if container.status not in ("running", "paused", "created", "restarting"):
                    self._log_over.set()
                    return
            except docker.errors.NotFound:
                self._log_over.set()
                return
            except CONNECTION_ERRORS as error:
                logger.debug("The log of %s broke off: %s", self._container.name, error)
            self._closed.wait(INSPECT_S)

    def _send_what_is_owed(self) -> None:
        if self._owed and self._signal(self._owed):
            self._owed = ""

    def _signal(self, name: str) -> bool:
        """Send a signal. Returns whether the daemon answered; a container that has just ended needs no signal."""
        try:
            if self._container.status == "paused":
                self._container.unpause()
            self._container.kill(signal=name)
        except docker.errors.APIError as error:
            logger.debug("%s to %s: %s", name, self._container.name, error)
            # A 500 is a fault of the daemon, as while it starts, unless it says that the container is not running.
            return not error.is_server_error() or "not running" in str(error)
        except CONNECTION_ERRORS as error:
            logger.debug("%s to %s: %s", name, self._container.name, error)
            return False
        return True

    def _daemon_is_leaving(self, now: float) -> bool:
        """Whether the stopping daemon ended the container; it then answers old connections, but no new ones.

        Without this check, a restart of the daemon would look as if a user had stopped the stage.
        """
        if self.state.get("ExitCode") == 0:
            return False
        began = time.monotonic()
        try:
            docker.from_env(timeout=_NEW_CONNECTION_LIMIT_S).close()
        except CONNECTION_ERRORS as error:
            self._wait_for_daemon(now, error)
            return not self._has_ended
        waited_s = time.monotonic() - began
        if waited_s > _SLOW_CONNECTION_S:
            # systemd holds the socket of a daemon that it restarts, so a client waits instead of being refused.
            self.unreachable_s += waited_s
        return False

    def _wait_for_daemon(self, now: float, error: Exception) -> None:
        if self._silent_since is None:
            logger.warning("The Docker daemon does not answer (%s); %s may live on.", error, self._container.name)
            self._silent_since = now
        if now - self._silent_since >= LOST_AFTER_S:
            self._give_up(f"the Docker daemon did not answer for {now - self._silent_since:.0f} s: {error}")

    def _daemon_answers(self, now: float) -> None:
        if self._silent_since is not None:
            self.unreachable_s += now - self._silent_since
            self._silent_since = None
            logger.warning("The Docker daemon answers again; %s is %s.", self._container.name, self._container.status)

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self._has_ended = True


def removed(container: Container) -> bool:
    """Remove a container, dead or alive. Returns False, with a warning, where the daemon did not answer."""
    try:
        with contextlib.suppress(docker.errors.NotFound):
            container.remove(force=True, v=True)
    except CONNECTION_ERRORS as error:
        logger.warning("%s could not be removed (%s); the next run will.", container.name, error)
        return False
    return True
