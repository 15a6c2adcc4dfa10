"""The Prefect and MLflow servers of a run: found where configured, else started on loopback and stopped at the end.

Imports neither Prefect nor MLflow: both are child processes, and the command line stays quick.
"""

import atexit
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from flows.ending_signals import signals_end_the_block, signals_held_back, signals_ignored
from flows.server_access import access_problem, usable_address, variables_set
from flows.server_databases import shown_database, with_driver
from flows.server_hindrances import planned_servers
from flows.server_logins import client_login, is_loopback
from flows.server_plans import TITLES, URL_KEYS
from flows.server_process import ServerError, ServerPlan, log_tail, start_process, stop_groups
from flows.server_record import ServerEntry, ServersRecord, UserEntry, locked, read_record, server_url, write_record
from flows.server_settings import ServerSettings
from flows.server_start import (
    BackgroundStart,
    Say,
    StartedServer,
    entry_of,
    server_answer,
    wait_until_healthy,
)
from tasks.mlflow_pages import runs_page
from tasks.mlflow_start import AlreadyUp, MlflowStart
from tasks.service_logins import login_variables

__all__ = ["ServerSettings", "Servers", "local_servers", "serve_until_interrupted"]

_REUSE_LIMIT_S = 10.0


@dataclass(frozen=True)
class Servers:
    """Addresses of the two servers of a run, and whether MLflow is up yet."""

    prefect_api_url: str
    prefect_ui_url: str
    mlflow_uri: str
    mlflow_start: MlflowStart = field(default_factory=AlreadyUp, compare=False)


@contextmanager
def local_servers(
    settings: ServerSettings, *, say: Say, meanwhile: Callable[[Servers], None] | None = None
) -> Iterator[Servers]:
    """Two healthy servers for the time of the block.

    A configured address is only checked. Else servers that already run for `settings.state_dir` are used, or both are
    started at once. They are stopped when their last user leaves, also after Ctrl-C, SIGTERM and SIGHUP. Where a server
    demands a login, the variables by which clients learn it stand in this process's environment meanwhile; the
    addresses hold none.

    Args:
        meanwhile: called while Prefect comes up, with the addresses: for imports, which take seconds. MLflow is then
            started behind it, and the block begins when Prefect answers; `Servers.mlflow_start` says when MLflow does.

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
            urls = use.begin(first="prefect" if meanwhile else None) if use.wanted else {}
            prefect = (prefect_given or f"{urls['prefect']}/api").rstrip("/")
            servers = Servers(
                prefect_api_url=prefect,
                prefect_ui_url=prefect.removesuffix("/api"),
                mlflow_uri=mlflow_given or urls["mlflow"],
            )
            with variables_set({**prefect_login, **mlflow_login, **use.client_variables}):
                if meanwhile is not None:
                    meanwhile(servers)
                yield replace(servers, mlflow_start=use.finish())
        finally:
            use.leave()
            atexit.unregister(use.leave)


def serve_until_interrupted(settings: ServerSettings, *, say: Say, experiment: str = "") -> None:
    """Keep both servers up until Ctrl-C; the body of `rlhf ui`.

    Args:
        experiment: of MLflow, whose runs are to be looked at; empty: all.

    Raises:
        ServerError: as `local_servers`; also when a server ends by itself.
    """
    with suppress(KeyboardInterrupt), local_servers(settings, say=say) as servers:
        mlflow = runs_page(servers.mlflow_uri, experiment) if experiment else servers.mlflow_uri
        say(f"Prefect: {servers.prefect_ui_url}\nMLflow:  {mlflow}\nCtrl-C ends this.")
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
    _lock: ExitStack = field(default_factory=ExitStack)
    _record: ServersRecord = field(default_factory=ServersRecord)
    _to_start: list[ServerPlan] = field(default_factory=list)
    _started: list[StartedServer] = field(default_factory=list)
    _behind: BackgroundStart | None = None

    def begin(self, *, first: str | None) -> dict[str, str]:
        """Addresses of the wanted servers, which are on their way up; this use is written into the record.

        The folder's lock is held until they are all healthy, or given up.

        Args:
            first: only this one is started now, the other by `finish`; None: both.
        """
        try:
            return self._begin(self.settings.state_dir, first)
        except OSError as error:
            raise ServerError(
                f"{self.settings.state_dir.absolute()}, where the servers keep their state, cannot be used: {error}. "
                f"Start in a folder that can be written, or set {' and '.join(URL_KEYS[name] for name in self.wanted)}."
            ) from error

    def _begin(self, folder: Path, first: str | None) -> dict[str, str]:
        self._lock.enter_context(locked(folder, say=self.say))
        self.entered = True
        record = read_record(folder)
        others = tuple(item for item in record.users if item.lives)
        kept = self._usable_ones(record, others)
        me = psutil.Process()
        user = UserEntry(token=self.token, pid=me.pid, created=me.create_time())
        self._record = ServersRecord(servers=kept, users=(*others, user))
        write_record(folder, self._record)
        usable = [server for server in kept if server.name in self.wanted]
        for server in usable:
            if server.wants_login:
                self._learn_login(server.name)
                self._require_access(server)
        missing = [name for name in self.wanted if name not in {server.name for server in kept}]
        self._to_start = planned_servers(self.settings, missing) if missing else []
        for plan in self._to_start:
            if plan.login:
                self._learn_login(plan.name)
        if missing:
            titles = " and ".join(TITLES[name] for name in missing)
            self.say(f"Starting {titles} (a new database takes some seconds longer).")
        planned = {plan.name: server_url(plan.host, plan.port) for plan in self._to_start}
        self._start(first)
        return {server.name: server.url for server in usable} | planned

    def finish(self) -> MlflowStart:
        """Wait until all are healthy; where `begin` started one first, for that only, and start the other.

        Raises:
            ServerError: one does not come up.
        """
        now, behind = list(self._started), len(self._to_start)
        self._start(None)
        self._wait(now)
        if behind:
            later = self._started[len(now) :]
            self._behind = BackgroundStart(lambda given_up: self._wait(later, given_up, is_last=True), say=self.say)
            return self._behind
        self._lock.close()
        return AlreadyUp()

    def _wait(
        self, servers: list[StartedServer], given_up: threading.Event | None = None, *, is_last: bool = False
    ) -> bool:
        try:
            limit_s = self.settings.startup_limit_s
            are_up = wait_until_healthy(servers, limit_s=limit_s, say=self.say, given_up=given_up)
            for server in servers if are_up else ():
                if server.entry.wants_login:
                    self._require_access(server.entry)
            return are_up
        finally:
            if is_last:
                self._lock.close()

    def _start(self, name: str | None) -> None:
        """Start the process of one of the planned servers, or of all, and note it in the record."""
        for plan in [plan for plan in self._to_start if name in (None, plan.name)]:
            with signals_held_back():
                child = start_process(plan)
                self.children[child.pid] = child
                self._started.append(StartedServer(plan, entry_of(plan, child.pid), child))
                entries = (*self._record.servers, self._started[-1].entry)
                self._record = ServersRecord(servers=entries, users=self._record.users)
                write_record(self.settings.state_dir, self._record)
            self._to_start.remove(plan)

    def _learn_login(self, name: str) -> None:
        """What clients need to log in, for the environment."""
        login = client_login(name, os.environ)
        if login:
            self.client_variables |= login_variables(name, login)

    def _require_access(self, server: ServerEntry) -> None:
        """See that a healthy server lets this process in.

        Raises:
            ServerError: it does not.
        """
        base = f"{server.url}/api" if server.name == "prefect" else server.url
        problem = access_problem(server.name, base, variables={**os.environ, **self.client_variables})
        if problem is None:
            return
        hint = ""
        if server.name == "mlflow":
            hint = f" MLflow keeps its users in {Path(server.log_path).parent / 'basic_auth.db'}; the password "
            hint += "there is the one that it was first started with."
        raise ServerError(f"The {TITLES[server.name]} server at {server.url} runs, but {problem}.{hint}")

    def leave(self) -> None:
        """Take this use out of the record; the last user stops the servers. Safe to call twice."""
        if self._behind is not None:
            self._behind.give_up()
        self._lock.close()
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
                # `mlflow server` starts the server and watches it; it takes a second more to end than that.
                watchers = {server.pid for server in record.servers if server.name == "mlflow"}
                stop_groups(leaders, children=self.children, watchers=watchers)
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


def _wait_for_answer(server: ServerEntry, *, limit_s: float) -> str | None:
    deadline = time.monotonic() + limit_s
    while (problem := server_answer(server)) is not None and time.monotonic() < deadline and server.lives:
        time.sleep(0.2)
    return problem
