"""One server as a child process: its port, its start, its health, its end. Imports neither Prefect nor MLflow."""

import errno
import http.client
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psutil

LOOPBACK = "127.0.0.1"
_STOP_LIMIT_S = 10.0
_LOG_LINES_SHOWN = 20
_LISTENS = "0A"  # a state in the kernel's tables of connections


class ServerError(Exception):
    """A server cannot be reached, started or stopped; the message says which config key to change."""


@dataclass(frozen=True)
class ServerPlan:
    """How to start one server; `folder` holds its state and its log.

    Attributes:
        host: the interface that it listens on.
        database: where its rows are, as it may be shown.
        login: `user:password` that it demands; empty: none.
        has_own_login: whether the login was made for its folder, not chosen by a user.
        secrets: texts that must be in its environment only.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    port: int
    host: str = LOOPBACK
    database: str = ""
    login: str = ""
    has_own_login: bool = False
    secrets: tuple[str, ...] = ()

    @property
    def log_path(self) -> Path:
        """Where the server's own output goes."""
        return self.folder / "server.log"


def free_ports(count: int) -> list[int]:
    """Different ports of the loopback interface that no process listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind((LOOPBACK, 0))
        return [int(item.getsockname()[1]) for item in sockets]


class PortReservations:
    """Ports that starting servers will take: seconds pass between the check of a port and the server's first answer.

    Without reservations, two users who start at the same moment would both find the usual port free. A reservation is a
    name that the kernel gives to one process of the machine at a time, of any user, and frees when that process ends.
    It affects no other program. If the kernel has no such names (macOS), every reservation succeeds.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}

    def take(self, port: int) -> bool:
        """Reserve the port; return whether it is reserved here now."""
        if port in self._held or not sys.platform.startswith("linux"):
            return True
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0rlhf-flows-port-{port}")
        except OSError:
            name.close()
            return False
        self._held[port] = name
        return True

    def release(self) -> None:
        """Release all reservations."""
        while self._held:
            self._held.popitem()[1].close()


def host_problem(host: str) -> str | None:
    """Why no server can listen on this host, and what to use instead; None if one can."""
    try:
        _try_to_listen(host, 0)
    except socket.gaierror:
        found = "is neither an address nor a name that can be looked up"
    except OSError as error:
        wrong_place = error.errno == errno.EADDRNOTAVAIL
        found = "is no address of this machine" if wrong_place else f"cannot be listened on ({error.strerror})"
    else:
        return None
    own = sorted(
        {item.address for items in psutil.net_if_addrs().values() for item in items if item.family == socket.AF_INET}
    )
    return f"Host `{host}` {found}. It has {', '.join(own)}; 0.0.0.0 is all of them, {LOOPBACK} this machine only."


def port_problem(port: int, *, host: str = LOOPBACK) -> str | None:
    """Why no server can start on this port of that interface, with the port's holder; None if it is free."""
    try:
        _try_to_listen(host, port)
    except OSError as error:
        return f"it is held by {_port_holder(port)}" if error.errno == errno.EADDRINUSE else str(error.strerror)
    return None


def _try_to_listen(host: str, port: int) -> None:
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def port_process(port: int) -> psutil.Process | None:
    """The process that listens there; None if there is none, or this user may not see it."""
    with suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            is_it = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if is_it and connection.pid is not None:  # None: it is another user's
                return psutil.Process(connection.pid)
    return None


def _port_holder(port: int) -> str:
    with suppress(psutil.Error):
        process = port_process(port)
        if process is not None:
            return f"pid {process.pid} ({' '.join(process.cmdline())[:120] or process.name()})"
    owner = _port_owner(port)
    return f"a process of user {owner}" if owner else "a process that this user may not see"


def _port_owner(port: int) -> str:
    """The user whose process listens there; empty if the kernel does not tell."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError, ValueError, LookupError), open(table, encoding="ascii") as lines:
            for line in list(lines)[1:]:
                words = line.split()  # number, local address, remote address, state, queues, timer, retransmits, user
                if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    return _user_name(int(words[7]))
    return ""


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def start_process(plan: ServerPlan) -> subprocess.Popen[bytes]:
    """Start the server in its own session, so that Ctrl-C reaches only the orchestrator, which then stops it."""
    plan.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    plan.folder.chmod(0o700)
    with open(plan.log_path, "wb") as log:
        return subprocess.Popen(
            plan.command,
            cwd=plan.folder,
            env=dict(plan.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def health_problem(url: str, *, timeout_s: float = 2.0) -> str | None:
    """None if the address answers 200; else what was seen."""
    status, problem = answer(url, timeout_s=timeout_s)
    return None if status == http.client.OK else problem


def answer(url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float) -> tuple[int, str]:
    """Status of a GET (0 without an answer), and what was seen as text. Requests to loopback use no proxy.

    Args:
        headers: sent to this address only, not to one that it redirects to.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return 0, "not an http(s) address"
    proxies: dict[str, str] | None = {} if parts.hostname in (LOOPBACK, "localhost", "::1") else None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))  # noqa: S310
    for name, value in (headers or {}).items():
        request.add_unredirected_header(name, value)
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return response.status, f"HTTP {response.status}"
    except urllib.error.HTTPError as error:
        with error:
            return error.code, f"HTTP {error.code} {error.reason}"
    except urllib.error.URLError as error:
        return 0, str(error.reason)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, f"{type(error).__name__}: {error}"


def log_tail(path: Path) -> str:
    """The last lines of a server's log, indented."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = deque((line.rstrip() for line in stream), maxlen=_LOG_LINES_SHOWN)
    except OSError as error:
        return f"  (no log: {error})"
    return "\n".join(f"  {line}" for line in lines if line) or "  (the log is empty)"


def is_same_process(pid: int, created: float) -> bool:
    """Whether the recorded process still lives; a pid that another process has now does not count."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def stop_groups(
    leaders: Iterable[int], *, children: Mapping[int, subprocess.Popen[bytes]], watchers: Collection[int] = ()
) -> None:
    """End the process groups led by these pids: SIGTERM, wait up to ten seconds, SIGKILL.

    Args:
        children: those of the leaders that this process started; they are reaped.
        watchers: leaders that only wait for their child and hold nothing: not waited for once they are alone.
    """
    groups = list(leaders)
    for number, limit_s in ((signal.SIGTERM, _STOP_LIMIT_S), (signal.SIGKILL, _STOP_LIMIT_S)):
        groups = [group for group in groups if _members(group, children)]
        for group in groups:
            try:
                os.killpg(group, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + limit_s
        while groups and time.monotonic() < deadline:
            time.sleep(0.05)
            members = {group: _members(group, children) for group in groups}
            groups = [group for group in groups if members[group]]
            for group in groups:
                if group in watchers and members[group] == [group]:
                    with suppress(ProcessLookupError):
                        os.kill(group, signal.SIGKILL)
    for child in children.values():
        with suppress(subprocess.TimeoutExpired):  # its first thread has ended, the others may take a moment more
            child.wait(timeout=2)


def _members(group: int, children: Mapping[int, subprocess.Popen[bytes]]) -> list[int]:
    """Pids of the group's processes that live."""
    if group in children:
        children[group].poll()
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (OSError, psutil.Error):
            continue
    return found
