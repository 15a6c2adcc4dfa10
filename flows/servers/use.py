"""One use of the servers of a state folder: found running or started, and stopped when their last user leaves."""

import os
import subprocess
import threading
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flows.servers.access import access_problem
from flows.servers.commands import TITLES, URL_KEYS
from flows.servers.databases import shown_database, with_driver
from flows.servers.logins import client_login, is_loopback, own_login
from flows.servers.preflight import planned_servers
from flows.servers.process import PortReservations, ServerError, ServerPlan, start_process, stop_groups
from flows.servers.record import ServerEntry, ServersRecord, UserEntry, locked, read_record, server_url, write_record
from flows.servers.settings import ServerSettings
from flows.servers.start import (
    BackgroundStart,
    Say,
    ServerProgress,
    StartedServer,
    entry_of,
    server_answer,
    wait_until_healthy,
)
from flows.signals import signals_held_back, signals_ignored
from tasks.config.logins import login_variables
from tasks.mlflow_sync.start import MlflowStart

# A server that runs, does not answer, and has no user is replaced after so long.
_REUSE_LIMIT_S = 10.0
_SAY_EVERY_S = 15.0
_LEAVE_LIMIT_S = 180.0
_OPEN = "It demands no login, as its first user wanted: every user of this machine can use it."


@dataclass
class ServersUse:
    """One use of the servers of a state folder, from `begin` to `leave`."""

    settings: ServerSettings
    wanted: tuple[str, ...]
    say: Say
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    children: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    client_variables: dict[str, str] = field(default_factory=dict)
    entered: bool = False
    _lock: ExitStack = field(default_factory=ExitStack)
    _reservations: PortReservations = field(default_factory=PortReservations)
    _record: ServersRecord = field(default_factory=ServersRecord)
    _to_start: list[ServerPlan] = field(default_factory=list)
    _started: list[StartedServer] = field(default_factory=list)
    _behind: BackgroundStart | None = None

    def begin(self, *, first: str | None) -> dict[str, str]:
        """Start the wanted servers, record this use, and return the addresses of the servers.

        Hold the folder's lock until they are all healthy, or given up.

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
        self._lock.enter_context(locked(folder, say=self.say, limit_s=self.settings.longest_start_s))
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
                self._learn_login(server.name, is_own=server.has_own_login)
                self._require_access(server)
        missing = [name for name in self.wanted if name not in {server.name for server in kept}]
        if missing:
            self._lock.callback(self._reservations.release)
            self._to_start = planned_servers(self.settings, missing, reservations=self._reservations, say=self.say)
            for plan in self._to_start:
                if plan.login:
                    self._learn_login(plan.name, is_own=plan.has_own_login)
            titles = " and ".join(TITLES[name] for name in missing)
            self.say(f"Starting {titles} (a new database takes some seconds longer).")
        planned = {plan.name: server_url(plan.host, plan.port) for plan in self._to_start}
        self._start(first)
        return {server.name: server.url for server in usable} | planned

    def finish(self) -> MlflowStart:
        """Wait until all are healthy; if `begin` started one first, wait for that only and start the other.

        Raises:
            ServerError: one does not start. Not for an MLflow that follows: a run goes on without it.
        """
        now, behind, problem = list(self._started), bool(self._to_start), ""
        try:
            self._start(None)
        except OSError as error:  # it ends nothing here: a run goes on without MLflow
            problem = f"The MLflow server cannot be started: {error}."
        self._wait(now)
        if behind:
            later = self._started[len(now) :]
            self._behind = BackgroundStart(lambda given_up: self._follows(later, given_up, problem), say=self.say)
            return self._behind
        self._lock.close()
        return MlflowStart()

    def _follows(self, servers: list[StartedServer], given_up: threading.Event, problem: str) -> bool:
        """Wait for servers that started after another; return whether they are up. Release the folder's lock.

        Raises:
            ServerError: they do not start.
        """
        try:
            if problem:
                raise ServerError(problem)
            return self._wait(servers, given_up)
        finally:
            self._lock.close()

    def _wait(self, servers: list[StartedServer], given_up: threading.Event | None = None) -> bool:
        are_up = wait_until_healthy(
            servers,
            idle_limit_s=self.settings.idle_limit_s,
            longest_s=self.settings.longest_start_s,
            say=self.say,
            given_up=given_up,
        )
        for server in servers if are_up else ():
            if server.entry.wants_login:
                self._require_access(server.entry)
        return are_up

    def _start(self, name: str | None) -> None:
        """Start the process of one of the planned servers, or of all, and record it."""
        for plan in [plan for plan in self._to_start if name in (None, plan.name)]:
            with signals_held_back():
                child = start_process(plan)
                self.children[child.pid] = child
                self._started.append(StartedServer(plan, entry_of(plan, child.pid), child))
                entries = (*self._record.servers, self._started[-1].entry)
                self._record = ServersRecord(servers=entries, users=self._record.users)
                write_record(self.settings.state_dir, self._record)
            self._to_start.remove(plan)

    def _learn_login(self, name: str, *, is_own: bool) -> None:
        """Add the variables by which clients log in."""
        login = own_login(self.settings.state_dir) if is_own else client_login(name, os.environ)
        if login:
            self.client_variables |= login_variables(name, login)

    def _require_access(self, server: ServerEntry) -> None:
        """Check that a healthy server accepts this process.

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
        with signals_ignored(), locked(folder, say=self.say, limit_s=_LEAVE_LIMIT_S):
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
        """The recorded servers that answer and fit the settings; one that lives but does not answer is stopped.

        Raises:
            ServerError: one is in use and does not fit the settings, or is at work and does not answer.
        """
        kept = []
        for server in record.servers:
            if not server.lives:
                continue
            problem = self._wait_for_answer(server, is_in_use=bool(others))
            title = TITLES[server.name]
            if problem is not None:
                self.say(f"The {title} server (pid {server.pid}) does not answer ({problem}); replaced.")
            elif (problem := self._mismatch(server)) is None and (others or not self._lacks_login(server)):
                self.say(f"Using the {title} server that runs at {server.url}.")
                if self._lacks_login(server):
                    self.say(_OPEN)
                kept.append(server)
                continue
            elif problem and others:
                users = ", ".join(str(user.pid) for user in others)
                raise ServerError(
                    f"The {title} server of {self.settings.state_dir.absolute()} {problem}, and is in use (by pid "
                    f"{users}). End that first, or use another folder."
                )
            else:
                self.say(f"The {title} server (pid {server.pid}) {problem or 'demands no login'}; replaced.")
            stop_groups([server.pid], children=self.children)
        return tuple(kept)

    def _wait_for_answer(self, server: ServerEntry, *, is_in_use: bool) -> str | None:
        """None once it answers; else what was seen of a server that hangs, or that no other process uses.

        Raises:
            ServerError: others use it, it is at work, and it has not answered for very long: nothing is stopped.
        """
        title, progress = TITLES[server.name], ServerProgress(server.pid, Path(server.log_path))
        began = time.monotonic()
        say_at_s = _SAY_EVERY_S
        while (problem := server_answer(server)) is not None and server.lives:
            waited_s, idle_s = time.monotonic() - began, progress.idle_s
            if (waited_s >= _REUSE_LIMIT_S and not is_in_use) or idle_s >= self.settings.idle_limit_s:
                break
            if waited_s >= self.settings.longest_start_s:
                raise ServerError(
                    f"The {title} server (pid {server.pid}) is at work for other runs, and has not answered for "
                    f"{waited_s:.0f} s ({problem}). Its log: {server.log_path}. Start again when the machine is less "
                    "busy."
                )
            if waited_s >= say_at_s:
                say_at_s = waited_s + _SAY_EVERY_S
                self.say(
                    f"{title} runs but does not answer after {waited_s:.0f} s; waiting. Its log: {server.log_path}"
                )
            time.sleep(0.2)
        return problem

    def _lacks_login(self, server: ServerEntry) -> bool:
        """Whether it demands no login although the settings want one; its present users want none."""
        is_wanted = server.name == "prefect" and "prefect" in self.wanted and self.settings.prefect_login
        return is_wanted and not server.wants_login

    def _mismatch(self, server: ServerEntry) -> str | None:
        """How the server differs from the settings; None if it fits. One that offers more fits, too."""
        if server.name not in self.wanted:
            return None
        if not is_loopback(self.settings.host) and server.host != self.settings.host:
            return f"listens on {server.host} instead of {self.settings.host}"
        wanted = self.settings.database(server.name)
        if wanted and server.database != shown_database(with_driver(server.name, wanted)):
            return f"keeps its rows in {server.database} instead of {shown_database(wanted)}"
        return None
