"""Wait for starting servers until they are healthy, or give up with the reason."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flows.servers.commands import HEALTH_PATHS, PORT_KEYS, TITLES, URL_KEYS
from flows.servers.log_reasons import masked, read_log, reason_in
from flows.servers.logins import is_loopback
from flows.servers.process import ServerError, ServerPlan, health_problem, log_tail, port_problem
from flows.servers.record import ServerEntry
from tasks.config.logins import LOGIN_VARIABLES
from tasks.mlflow_sync.start import MlflowStart

_LOOK_EVERY_S = 1.0
# A process that only sleeps, and wakes for a timer, uses less.
_LEAST_PROCESSOR_S = 0.1
_ASK_EVERY_S = 0.1
_SAY_EVERY_S = 15.0
WITHOUT_MLFLOW = (
    "The run goes on without MLflow: curves are in each stage's events.jsonl, and other data for MLflow is kept on "
    "disk. The next run in the same folder delivers it, once MLflow starts."
)


class ServerProgress:
    """Watches the log of a server and the processor time of its processes.

    Args:
        pid: the process that was started; its children count too.
        log_path: where all of them write.
    """

    def __init__(self, pid: int, log_path: Path) -> None:
        self._pid = pid
        self._log_path = log_path
        self._looked_at = self._moved_at = time.monotonic()
        self._log_bytes, self._processor_s = _size(log_path), _processor_s(pid)

    @property
    def idle_s(self) -> float:
        """Seconds since it was last seen at work."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._look(now)
        return now - self._moved_at

    def _look(self, now: float) -> None:
        log_bytes, processor_s = _size(self._log_path), _processor_s(self._pid)
        # Less than before: a child has ended, and its parent did not take over its time.
        if log_bytes != self._log_bytes or abs(processor_s - self._processor_s) >= _LEAST_PROCESSOR_S:
            self._log_bytes, self._processor_s, self._moved_at = log_bytes, processor_s, now


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _processor_s(pid: int) -> float:
    """Processor time of a process and its children, also of those that have ended."""
    total = 0.0
    for process in _with_children(pid):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def _with_children(pid: int) -> list[psutil.Process]:
    """The process and its children, also theirs; empty if it has ended."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


Say = Callable[[str], None]


@dataclass
class StartedServer:
    """A server whose process this one started a moment ago."""

    plan: ServerPlan
    entry: ServerEntry
    child: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)
    said_at_s: float = 0.0

    def __post_init__(self) -> None:
        """Watch it from its start."""
        self.progress = ServerProgress(self.child.pid, self.plan.log_path)

    @property
    def waited_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.began

    def say_that_it_takes_long(self, say: Say, *, every_s: float) -> None:
        """Print a line now and then, so that the command does not seem to hang."""
        waited_s, idle_s = self.waited_s, self.progress.idle_s
        if waited_s < self.said_at_s + every_s:
            return
        self.said_at_s = waited_s
        seen = "is at work" if idle_s < every_s else f"has done nothing for {idle_s:.0f} s"
        title, log_path = TITLES[self.plan.name], self.plan.log_path
        say(f"{title} {seen} but not ready after {waited_s:.0f} s; waiting. Its log: {log_path}")

    def require_still_starting(self, *, idle_limit_s: float, longest_s: float) -> None:
        """Give up a server that has ended, does nothing any more, or waits in vain.

        Raises:
            ServerError: with the reason from its log if that is known, else with what was seen and the log's end.
        """
        plan, waited_s = self.plan, self.waited_s
        title = TITLES[plan.name]
        code, idle_s = self.child.poll(), self.progress.idle_s
        reason = reason_in(read_log(plan.log_path), database=plan.database, python=sys.executable)
        if reason is not None:
            raise ServerError(
                f"The {title} server does not start: {masked(reason, plan.secrets)} Its log: {plan.log_path}"
            )
        if code is not None:
            problem = _why_it_ended(plan, code)
        elif idle_s >= idle_limit_s:
            problem = (
                f"has done nothing for {idle_s:.0f} s: neither its log nor its use of the processor grew. It may wait "
                f"for a disk, a database or a lock; see its log, and start again. {_your_own(plan)}"
            )
        elif waited_s >= longest_s:
            problem = f"is at work, but still not healthy after {waited_s:.0f} s. {_your_own(plan)}"
        else:
            return
        raise ServerError(
            f"The {title} server {problem} Last lines of {plan.log_path}:\n"
            f"{masked(log_tail(plan.log_path), plan.secrets)}"
        )


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
        has_own_login=plan.has_own_login,
    )


def server_answer(server: ServerEntry) -> str | None:
    """None if the server is healthy; else what was seen."""
    return health_problem(f"{server.url}{HEALTH_PATHS[server.name]}")


def wait_until_healthy(
    servers: Sequence[StartedServer],
    *,
    idle_limit_s: float,
    longest_s: float,
    say: Say,
    say_every_s: float = _SAY_EVERY_S,
    given_up: threading.Event | None = None,
) -> bool:
    """Wait until all of them answer, and return True; False if `given_up` was set before.

    Args:
        idle_limit_s: a server that is not at work for so long is given up.
        longest_s: longest wait for a server that is at work.

    Raises:
        ServerError: one has ended, does nothing, takes longer than `longest_s`, or waits in vain.
    """
    stop = given_up or threading.Event()
    waiting = list(servers)
    while waiting:
        for server in list(waiting):
            # Another program may answer in place of a server that has ended, or that comes to the port later.
            if server_answer(server.entry) is None and _listens(server):
                waiting.remove(server)
                say(f"{TITLES[server.entry.name]} is ready after {server.waited_s:.1f} s: {server.entry.url}")
                _say_where_else(server.entry, say)
            else:
                server.require_still_starting(idle_limit_s=idle_limit_s, longest_s=longest_s)
                server.say_that_it_takes_long(say, every_s=say_every_s)
        if waiting and stop.wait(_ASK_EVERY_S):
            return False
    return True


def _listens(server: StartedServer) -> bool:
    """Whether the started process, or one of its children, holds the server's port."""
    for process in _with_children(server.child.pid):
        with suppress(psutil.Error):
            for socket_ in process.net_connections(kind="tcp"):
                if socket_.status == psutil.CONN_LISTEN and socket_.laddr.port == server.plan.port:
                    return server.child.poll() is None
    return False


def _say_where_else(server: ServerEntry, say: Say) -> None:
    if not is_loopback(server.host):
        say(
            f"  From other machines: http://{socket.gethostname()}:{server.port}, with the login of "
            f"{LOGIN_VARIABLES[server.name]}. It crosses the network unencrypted (docs/servers.md)."
        )


def _why_it_ended(plan: ServerPlan, code: int) -> str:
    """Exit code, and the port's holder if a process took the port between check and start."""
    problem = port_problem(plan.port, host=plan.host)
    if problem is None:
        return f"ended with exit code {code}."
    return (
        f"ended with exit code {code}: port {plan.port} was taken while it started: {problem}. Start again, or set "
        f"{PORT_KEYS[plan.name]} to another port."
    )


def _your_own(plan: ServerPlan) -> str:
    return f"Or set {URL_KEYS[plan.name]} to a server of your own."


class BackgroundStart(MlflowStart):
    """Waits for MLflow in its own thread.

    Args:
        wait: returns whether MLflow is up; its event says that the answer is no longer needed.
        say: gets the reason if MLflow does not start. A run then goes on, and keeps MLflow's data on disk.
    """

    def __init__(self, wait: Callable[[threading.Event], bool], *, say: Say) -> None:
        self._wait = wait
        self._say = say
        self._up = threading.Event()
        self._given_up = threading.Event()
        self._problem = ""
        self._thread = threading.Thread(target=self._work, name="server-start", daemon=True)
        self._thread.start()

    @property
    def is_up(self) -> bool:
        """Whether it answered."""
        return self._up.is_set()

    @property
    def problem(self) -> str:
        """Why it does not start; empty while it may still come up."""
        return self._problem

    def wait(self, *, limit_s: float | None = None) -> None:
        """Return when it is up, has failed to start, or after the limit."""
        self._thread.join(timeout=limit_s)

    def give_up(self) -> None:
        """Stop waiting; the thread has ended after that."""
        self._given_up.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            if self._wait(self._given_up):
                self._up.set()
        except Exception as error:
            self._problem = str(error) or type(error).__name__
            self._say(f"{self._problem}\n{WITHOUT_MLFLOW}")
