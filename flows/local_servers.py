"""The Prefect and MLflow servers of a run: found where configured, else started on loopback and stopped at the end.

Imports neither Prefect nor MLflow: both are child processes, and the command line stays quick.
"""

import atexit
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flows.ending_signals import signals_end_the_block, signals_held_back, signals_ignored
from flows.server_addresses import address_problem
from flows.server_plans import HEALTH_PATHS, PORT_KEYS, TITLES, URL_KEYS, server_plan
from flows.server_process import (
    LOOPBACK,
    ServerError,
    ServerPlan,
    free_ports,
    health_problem,
    log_tail,
    port_problem,
    start_process,
    stop_groups,
)
from flows.server_record import ServerEntry, ServersRecord, UserEntry, locked, read_record, write_record

Say = Callable[[str], None]

_GIVEN_LIMIT_S = 10.0
_REUSE_LIMIT_S = 10.0


@dataclass(frozen=True)
class ServerSettings:
    """Where the servers are, or where and on which ports to start them; port 0 is any free one.

    Attributes:
        host: interface that servers started here listen on.
        prefect_database: database of a Prefect started here; None: SQLite in `state_dir`.
        mlflow_database: the same for MLflow.
    """

    state_dir: Path
    prefect_api_url: str | None = None
    mlflow_uri: str | None = None
    prefect_port: int = 0
    mlflow_port: int = 0
    host: str = LOOPBACK
    prefect_database: str | None = None
    mlflow_database: str | None = None
    startup_limit_s: float = 120.0


@dataclass(frozen=True)
class Servers:
    """Addresses of the two servers of a run."""

    prefect_api_url: str
    prefect_ui_url: str
    mlflow_uri: str


@contextmanager
def local_servers(settings: ServerSettings, *, say: Say) -> Iterator[Servers]:
    """Two healthy servers for the time of the block.

    A configured address is only checked. Else servers that already run for `settings.state_dir` are used, or both are
    started at once. They are stopped when their last user leaves, also after Ctrl-C, SIGTERM and SIGHUP.

    Raises:
        ServerError: an address does not answer, a port is taken, the state folder cannot be used, a server does not
            become healthy in time.
    """
    _check_given("prefect", settings.prefect_api_url, say=say)
    _check_given("mlflow", settings.mlflow_uri, say=say)
    given = {"prefect": settings.prefect_api_url, "mlflow": settings.mlflow_uri}
    use = _Use(settings, wanted=tuple(name for name, url in given.items() if url is None), say=say)
    with signals_end_the_block():
        atexit.register(use.leave)
        try:
            urls = use.enter() if use.wanted else {}
            prefect = (settings.prefect_api_url or f"{urls['prefect']}/api").rstrip("/")
            yield Servers(
                prefect_api_url=prefect,
                prefect_ui_url=prefect.removesuffix("/api"),
                mlflow_uri=settings.mlflow_uri or urls["mlflow"],
            )
        finally:
            use.leave()
            atexit.unregister(use.leave)


def serve_until_interrupted(settings: ServerSettings, *, say: Say) -> None:
    """Keep both servers up until Ctrl-C; the body of `rlhf ui`.

    Raises:
        ServerError: as `local_servers`; also when a server ends by itself.
    """
    with suppress(KeyboardInterrupt), local_servers(settings, say=say) as servers:
        say(f"Prefect: {servers.prefect_ui_url}\nMLflow:  {servers.mlflow_uri}\nCtrl-C ends this.")
        watched = read_record(settings.state_dir).servers
        while True:
            time.sleep(1.0)
            for server in watched:
                if not server.lives:
                    raise ServerError(
                        f"The {TITLES[server.name]} server (pid {server.pid}) has ended by itself. Last lines of "
                        f"{server.log_path}:\n{log_tail(Path(server.log_path))}"
                    )


@dataclass
class _Use:
    """One use of the servers of a state folder, from `enter` to `leave`."""

    settings: ServerSettings
    wanted: tuple[str, ...]
    say: Say
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    children: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    entered: bool = False

    def enter(self) -> dict[str, str]:
        """Addresses of the wanted servers, all healthy; this use is written into the record."""
        try:
            return self._enter(self.settings.state_dir)
        except OSError as error:
            raise ServerError(
                f"{self.settings.state_dir.absolute()}, where the servers keep their state, cannot be used: {error}. "
                f"Start in a folder that can be written, or set {' and '.join(URL_KEYS[name] for name in self.wanted)}."
            ) from error

    def _enter(self, folder: Path) -> dict[str, str]:
        with locked(folder, say=self.say):
            self.entered = True
            record = read_record(folder)
            kept = self._healthy_ones(record)
            me = psutil.Process()
            user = UserEntry(token=self.token, pid=me.pid, created=me.create_time())
            users = (*(item for item in record.users if item.lives), user)
            write_record(folder, ServersRecord(servers=kept, users=users))
            missing = [name for name in self.wanted if name not in {server.name for server in kept}]
            started = self._start(missing, kept, users)
        return {server.name: f"http://{LOOPBACK}:{server.port}" for server in (*kept, *started)}

    def leave(self) -> None:
        """Take this use out of the record; the last user stops the servers. Safe to call twice."""
        if not self.entered:
            return
        folder = self.settings.state_dir
        with signals_ignored(), locked(folder, say=self.say):
            record = read_record(folder)
            users = tuple(user for user in record.users if user.lives and user.token != self.token)
            if users:
                write_record(folder, ServersRecord(servers=record.servers, users=users))
            else:
                leaders = {server.pid for server in record.servers if server.lives} | set(self.children)
                stop_groups(leaders, children=self.children)
                write_record(folder, ServersRecord())
            self.entered = False

    def _healthy_ones(self, record: ServersRecord) -> tuple[ServerEntry, ...]:
        """The recorded servers that answer; one that lives but does not answer is stopped."""
        kept = []
        for server in record.servers:
            if not server.lives:
                continue
            problem = _wait_for_answer(server, limit_s=_REUSE_LIMIT_S)
            if problem is None:
                self.say(f"Using the {TITLES[server.name]} server that runs at http://{LOOPBACK}:{server.port}.")
                kept.append(server)
            else:
                self.say(f"The {TITLES[server.name]} server (pid {server.pid}) does not answer ({problem}); replaced.")
                stop_groups([server.pid], children=self.children)
        return tuple(kept)

    def _start(
        self, names: list[str], kept: tuple[ServerEntry, ...], users: tuple[UserEntry, ...]
    ) -> tuple[ServerEntry, ...]:
        if not names:
            return ()
        plans = self._plans(names)
        titles = " and ".join(TITLES[name] for name in names)
        self.say(f"Starting {titles} (a new database takes some seconds longer).")
        began = time.monotonic()
        started: tuple[ServerEntry, ...] = ()
        for plan in plans:
            with signals_held_back():
                child = start_process(plan)
                self.children[child.pid] = child
                created, log_path = psutil.Process(child.pid).create_time(), str(plan.log_path)
                entry = ServerEntry(name=plan.name, pid=child.pid, created=created, port=plan.port, log_path=log_path)
                started += (entry,)
                write_record(self.settings.state_dir, ServersRecord(servers=(*kept, *started), users=users))
        waiting = list(started)
        while waiting:
            for server in list(waiting):
                if _answer(server) is None:
                    waiting.remove(server)
                    url = f"http://{LOOPBACK}:{server.port}"
                    self.say(f"{TITLES[server.name]} is ready after {time.monotonic() - began:.1f} s: {url}")
                else:
                    self._require_still_starting(server, waited_s=time.monotonic() - began)
            time.sleep(0.1)
        return started

    def _plans(self, names: list[str]) -> list[ServerPlan]:
        ports = {"prefect": self.settings.prefect_port, "mlflow": self.settings.mlflow_port}
        spare = free_ports(len(names))
        taken = [problem for name in names if ports[name] and (problem := _port_problem(name, ports[name]))]
        if taken:
            raise ServerError("\n".join(taken))
        folder = self.settings.state_dir.resolve()
        return [server_plan(name, folder, ports[name] or port) for name, port in zip(names, spare, strict=True)]

    def _require_still_starting(self, server: ServerEntry, *, waited_s: float) -> None:
        code = self.children[server.pid].poll()
        if code is None and waited_s < self.settings.startup_limit_s:
            return
        what = f"ended with exit code {code}" if code is not None else f"was not healthy after {waited_s:.0f} s"
        raise ServerError(
            f"The {TITLES[server.name]} server on port {server.port} {what}. Set {PORT_KEYS[server.name]} to another "
            f"port, or {URL_KEYS[server.name]} to a server of your own. Last lines of {server.log_path}:\n"
            f"{log_tail(Path(server.log_path))}"
        )


def _check_given(name: str, url: str | None, *, say: Say) -> None:
    """Refuse a configured address that cannot be used; a lost MLflow is only said, since a run goes on without it."""
    if url is None:
        return
    shown = re.sub(r"//[^/]*@", "//", url)
    problem = address_problem(name, shown)
    if problem is not None:
        raise ServerError(f"{URL_KEYS[name]}: {problem}")
    if not url.lower().startswith("http"):
        return  # a database
    problem = health_problem(url.rstrip("/") + "/health", timeout_s=_GIVEN_LIMIT_S)
    if problem is None:
        return
    if name == "mlflow":
        say(
            f"Warning: no healthy MLflow server at {shown} ({problem}; {URL_KEYS[name]}). A run goes on; what MLflow "
            "should be told waits on disk for the next run in the same folder."
        )
        return
    hint = "" if url.rstrip("/").endswith("/api") else " A Prefect address ends in /api."
    raise ServerError(
        f"{URL_KEYS[name]}: no healthy {TITLES[name]} server at {shown} ({problem}).{hint} Start that server, correct "
        f"the address, or leave the key out to have one started here."
    )


def _port_problem(name: str, port: int) -> str | None:
    problem = port_problem(port)
    if problem is None:
        return None
    return (
        f"Port {port} for {TITLES[name]} cannot be used: {problem}. Set {PORT_KEYS[name]} to another port, or to 0 for "
        f"any free one; or, if a {TITLES[name]} server that you want runs there, set {URL_KEYS[name]}."
    )


def _answer(server: ServerEntry) -> str | None:
    return health_problem(f"http://{LOOPBACK}:{server.port}{HEALTH_PATHS[server.name]}")


def _wait_for_answer(server: ServerEntry, *, limit_s: float) -> str | None:
    deadline = time.monotonic() + limit_s
    while (problem := _answer(server)) is not None and time.monotonic() < deadline and server.lives:
        time.sleep(0.2)
    return problem
