"""Servers on their way up: asked for their health until they answer, or given up with the reason."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flows.server_logins import is_loopback
from flows.server_plans import HEALTH_PATHS, PORT_KEYS, TITLES, URL_KEYS
from flows.server_process import ServerError, ServerPlan, health_problem, log_tail
from flows.server_reasons import masked, read_log, reason_in
from flows.server_record import ServerEntry
from tasks.service_logins import LOGIN_VARIABLES

Say = Callable[[str], None]

_ASK_EVERY_S = 0.1


@dataclass(frozen=True)
class StartedServer:
    """A server whose process was started by this one a moment ago."""

    plan: ServerPlan
    entry: ServerEntry
    child: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)

    @property
    def waited_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.began


def entry_of(plan: ServerPlan, pid: int) -> ServerEntry:
    """The server's line in the record."""
    return ServerEntry(
        name=plan.name,
        pid=pid,
        created=psutil.Process(pid).create_time(),
        port=plan.port,
        log_path=str(plan.log_path),
        host=plan.host,
        database=plan.database,
        wants_login=bool(plan.login),
    )


def server_answer(server: ServerEntry) -> str | None:
    """None where the server is healthy; else what was seen."""
    return health_problem(f"{server.url}{HEALTH_PATHS[server.name]}")


def wait_until_healthy(
    servers: Sequence[StartedServer], *, limit_s: float, say: Say, given_up: threading.Event | None = None
) -> bool:
    """Whether all of them answer; False where `given_up` was set before.

    Raises:
        ServerError: one has ended, takes longer than `limit_s`, or waits for what will not come.
    """
    stop = given_up or threading.Event()
    waiting = list(servers)
    while waiting:
        for server in list(waiting):
            if server_answer(server.entry) is None:
                waiting.remove(server)
                say(f"{TITLES[server.entry.name]} is ready after {server.waited_s:.1f} s: {server.entry.url}")
                _say_where_else(server.entry, say)
            else:
                _require_still_starting(server, limit_s=limit_s)
        if waiting and stop.wait(_ASK_EVERY_S):
            return False
    return True


def _say_where_else(server: ServerEntry, say: Say) -> None:
    if not is_loopback(server.host):
        say(
            f"  From other machines: http://{socket.gethostname()}:{server.port}, with the login of "
            f"{LOGIN_VARIABLES[server.name]}. It crosses the network unencrypted (docs/servers.md)."
        )


def _require_still_starting(server: StartedServer, *, limit_s: float) -> None:
    """Give up a server that has ended, takes too long, or waits for what will not come.

    Raises:
        ServerError: with the reason from its log where that is known, else with the end of the log.
    """
    code, plan, waited_s = server.child.poll(), server.plan, server.waited_s
    title, log_path = TITLES[plan.name], plan.log_path
    reason = reason_in(read_log(log_path), database=plan.database, python=sys.executable)
    if reason is not None:
        raise ServerError(f"The {title} server does not start: {masked(reason, plan.secrets)} Its log: {log_path}")
    if code is None and waited_s < limit_s:
        return
    what = f"ended with exit code {code}" if code is not None else f"was not healthy after {waited_s:.0f} s"
    raise ServerError(
        f"The {title} server on port {plan.port} {what}. Set {PORT_KEYS[plan.name]} to another port, or "
        f"{URL_KEYS[plan.name]} to a server of your own. Last lines of {log_path}:\n"
        f"{masked(log_tail(Path(log_path)), plan.secrets)}"
    )


class BackgroundStart:
    """Waits for servers in a thread of its own; a `tasks.mlflow_start.MlflowStart`.

    Args:
        wait: returns whether they are up; told by its event that nobody wants to know any more.
        say: gets a line where they do not start; why is said by `wait`.
    """

    def __init__(self, wait: Callable[[threading.Event], bool], *, say: Say) -> None:
        self._wait = wait
        self._say = say
        self._up = threading.Event()
        self._given_up = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="server-start", daemon=True)
        self._thread.start()

    @property
    def is_up(self) -> bool:
        """Whether they answered."""
        return self._up.is_set()

    def wait(self, *, limit_s: float | None = None) -> None:
        """Return when they are up, or after the limit.

        Raises:
            ServerError: they do not start; raised once.
        """
        self._thread.join(timeout=limit_s)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def give_up(self) -> None:
        """Wait no longer; nothing of it is at work after that."""
        self._given_up.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            if self._wait(self._given_up):
                self._up.set()
        except Exception as error:
            self._error = error
            self._say("MLflow does not start; the run ends after the stage that is at work, and says why.")
