"""The Prefect and MLflow servers of a run: found where configured, else started on loopback and stopped at the end.

Imports neither Prefect nor MLflow: both are child processes, and the command line stays quick.
"""

import atexit
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flows.ending_signals import signals_end_the_block, signals_held_back, signals_ignored
from flows.server_access import access_problem, usable_address, variables_set
from flows.server_databases import shown_database, with_driver
from flows.server_hindrances import planned_servers
from flows.server_logins import client_login, is_loopback
from flows.server_plans import HEALTH_PATHS, PORT_KEYS, TITLES, URL_KEYS
from flows.server_process import ServerError, ServerPlan, health_problem, log_tail, start_process, stop_groups
from flows.server_reasons import masked, read_log, reason_in
from flows.server_record import ServerEntry, ServersRecord, UserEntry, locked, read_record, write_record
from flows.server_settings import ServerSettings
from tasks.service_logins import LOGIN_VARIABLES, login_variables

__all__ = ["ServerSettings", "Servers", "local_servers", "serve_until_interrupted"]

Say = Callable[[str], None]

_REUSE_LIMIT_S = 10.0


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
    started at once. They are stopped when their last user leaves, also after Ctrl-C, SIGTERM and SIGHUP. Where a server
    demands a login, the variables by which clients learn it stand in this process's environment meanwhile; the
    addresses hold none.

    Raises:
        ServerError: an address does not answer or does not let us in, a port is taken, a login is missing, a database
            cannot be used, the state folder cannot be used, a server does not become healthy in time.
    """
    prefect_given, prefect_login = usable_address("prefect", settings.prefect_api_url, say=say)
    mlflow_given, mlflow_login = usable_address("mlflow", settings.mlflow_uri, say=say)
    given = {"prefect": prefect_given, "mlflow": mlflow_given}
    use = _Use(settings, wanted=tuple(name for name, url in given.items() if url is None), say=say)
    with signals_end_the_block():
        atexit.register(use.leave)
        try:
            urls = use.enter() if use.wanted else {}
            prefect = (prefect_given or f"{urls['prefect']}/api").rstrip("/")
            with variables_set({**prefect_login, **mlflow_login, **use.client_variables}):
                yield Servers(
                    prefect_api_url=prefect,
                    prefect_ui_url=prefect.removesuffix("/api"),
                    mlflow_uri=mlflow_given or urls["mlflow"],
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
    client_variables: dict[str, str] = field(default_factory=dict)
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
            others = tuple(item for item in record.users if item.lives)
            kept = self._usable_ones(record, others)
            me = psutil.Process()
            user = UserEntry(token=self.token, pid=me.pid, created=me.create_time())
            users = (*others, user)
            write_record(folder, ServersRecord(servers=kept, users=users))
            missing = [name for name in self.wanted if name not in {server.name for server in kept}]
            servers = (*kept, *self._start(missing, kept, users))
            self._log_in([server for server in servers if server.name in self.wanted])
        return {server.name: server.url for server in servers}

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

    def _usable_ones(self, record: ServersRecord, others: tuple[UserEntry, ...]) -> tuple[ServerEntry, ...]:
        """The recorded servers that answer and are what is wanted; one that lives but does not answer is stopped.

        Raises:
            ServerError: one is in use, and not what is wanted.
        """
        kept = []
        for server in record.servers:
            if not server.lives:
                continue
            problem = _wait_for_answer(server, limit_s=_REUSE_LIMIT_S)
            title = TITLES[server.name]
            if problem is not None:
                self.say(f"The {title} server (pid {server.pid}) does not answer ({problem}); replaced.")
            elif (problem := self._mismatch(server)) is None:
                self.say(f"Using the {title} server that runs at {server.url}.")
                kept.append(server)
                continue
            elif others:
                users = ", ".join(str(user.pid) for user in others)
                raise ServerError(
                    f"The {title} server of {self.settings.state_dir.absolute()} {problem}, and is in use (by pid "
                    f"{users}). End that first, or use another folder."
                )
            else:
                self.say(f"The {title} server (pid {server.pid}) {problem}; replaced.")
            stop_groups([server.pid], children=self.children)
        return tuple(kept)

    def _mismatch(self, server: ServerEntry) -> str | None:
        """What of this was asked for and is not so. A server that does more than was asked for will do."""
        if server.name not in self.wanted:
            return None
        if not is_loopback(self.settings.host) and server.host != self.settings.host:
            return f"listens on {server.host} instead of {self.settings.host}"
        wanted = self.settings.database(server.name)
        if wanted and server.database != shown_database(with_driver(server.name, wanted)):
            return f"keeps its rows in {server.database} instead of {shown_database(wanted)}"
        return None

    def _log_in(self, servers: list[ServerEntry]) -> None:
        """See that the servers let this process in, and hand their logins on to its clients."""
        for server in servers:
            if not server.wants_login:
                continue
            login = client_login(server.name, os.environ)
            learnt = login_variables(server.name, login) if login else {}
            base = f"{server.url}/api" if server.name == "prefect" else server.url
            problem = access_problem(server.name, base, variables={**os.environ, **learnt})
            if problem is not None:
                hint = ""
                if server.name == "mlflow":
                    hint = f" MLflow keeps its users in {Path(server.log_path).parent / 'basic_auth.db'}; the password "
                    hint += "there is the one that it was first started with."
                raise ServerError(f"The {TITLES[server.name]} server at {server.url} runs, but {problem}.{hint}")
            self.client_variables |= learnt

    def _start(
        self, names: list[str], kept: tuple[ServerEntry, ...], users: tuple[UserEntry, ...]
    ) -> tuple[ServerEntry, ...]:
        if not names:
            return ()
        plans = planned_servers(self.settings, names)
        by_name = {plan.name: plan for plan in plans}
        titles = " and ".join(TITLES[name] for name in names)
        self.say(f"Starting {titles} (a new database takes some seconds longer).")
        began = time.monotonic()
        started: tuple[ServerEntry, ...] = ()
        for plan in plans:
            with signals_held_back():
                child = start_process(plan)
                self.children[child.pid] = child
                started += (_entry(plan, child.pid),)
                write_record(self.settings.state_dir, ServersRecord(servers=(*kept, *started), users=users))
        waiting = list(started)
        while waiting:
            for server in list(waiting):
                if _answer(server) is None:
                    waiting.remove(server)
                    self.say(f"{TITLES[server.name]} is ready after {time.monotonic() - began:.1f} s: {server.url}")
                    self._say_where_else(server)
                else:
                    self._require_still_starting(server, by_name[server.name], waited_s=time.monotonic() - began)
            time.sleep(0.1)
        return started

    def _say_where_else(self, server: ServerEntry) -> None:
        if not is_loopback(server.host):
            self.say(
                f"  From other machines: http://{socket.gethostname()}:{server.port}, with the login of "
                f"{LOGIN_VARIABLES[server.name]}. It crosses the network unencrypted (docs/servers.md)."
            )

    def _require_still_starting(self, server: ServerEntry, plan: ServerPlan, *, waited_s: float) -> None:
        """Give up a server that has ended, takes too long, or waits for what will not come.

        Raises:
            ServerError: with the reason from its log where that is known, else with the end of the log.
        """
        code = self.children[server.pid].poll()
        title, log_path = TITLES[server.name], Path(server.log_path)
        reason = reason_in(read_log(log_path), database=plan.database, python=sys.executable)
        if reason is not None:
            raise ServerError(f"The {title} server does not start: {masked(reason, plan.secrets)} Its log: {log_path}")
        if code is None and waited_s < self.settings.startup_limit_s:
            return
        what = f"ended with exit code {code}" if code is not None else f"was not healthy after {waited_s:.0f} s"
        raise ServerError(
            f"The {title} server on port {server.port} {what}. Set {PORT_KEYS[server.name]} to another port, or "
            f"{URL_KEYS[server.name]} to a server of your own. Last lines of {log_path}:\n"
            f"{masked(log_tail(log_path), plan.secrets)}"
        )


def _entry(plan: ServerPlan, pid: int) -> ServerEntry:
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


def _answer(server: ServerEntry) -> str | None:
    return health_problem(f"{server.url}{HEALTH_PATHS[server.name]}")


def _wait_for_answer(server: ServerEntry, *, limit_s: float) -> str | None:
    deadline = time.monotonic() + limit_s
    while (problem := _answer(server)) is not None and time.monotonic() < deadline and server.lives:
        time.sleep(0.2)
    return problem
