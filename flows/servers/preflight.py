"""Everything that is known to hinder servers that are to be started here, found before the first process."""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from flows.servers.commands import PORT_KEYS, TITLES, URL_KEYS, USUAL_PORTS, server_plan
from flows.servers.databases import (
    DATABASE_VARIABLES,
    database_address,
    database_problem,
    secrets_in_url,
    shown_database,
)
from flows.servers.logins import demanded_logins, login_file, made_login, own_login
from flows.servers.process import (
    PortReservations,
    ServerError,
    ServerPlan,
    free_ports,
    host_problem,
    port_problem,
    port_process,
)
from flows.servers.settings import ServerSettings

Say = Callable[[str], None]

_DATABASE_LIMIT_S = 10.0


def planned_servers(
    settings: ServerSettings, names: Sequence[str], *, reservations: PortReservations, say: Say
) -> list[ServerPlan]:
    """How to start these servers.

    Args:
        reservations: holds their ports from now on.

    Raises:
        ServerError: the host is not ours; a login is missing; ports that somebody named are taken or databases cannot
            be used, all of them at once.
    """
    if (problem := host_problem(settings.host)) is not None:
        raise ServerError(problem)
    logins = demanded_logins(names, host=settings.host, variables=os.environ)
    problems = [problem for name in names if (problem := _port_problem(name, settings, reservations))]
    problems += [problem for name in names if (problem := _database_problem(name, settings.database(name)))]
    if problems:
        raise ServerError("\n".join(problems))
    ports = _ports(settings, names, reservations, say=say)
    own = _own_login(settings, names, say=say) if "prefect" not in logins else ""
    plans = [
        server_plan(
            name,
            settings.state_dir.resolve(),
            ports[name],
            host=settings.host,
            database=settings.database(name),
            login=logins.get(name, "") or (own if name == "prefect" else ""),
        )
        for name in names
    ]
    return [replace(plan, has_own_login=bool(own) and plan.name == "prefect") for plan in plans]


def _own_login(settings: ServerSettings, names: Sequence[str], *, say: Say) -> str:
    """The login that is made for a Prefect here; empty where none is wanted. A new one is shown once, to a person."""
    if "prefect" not in names or not settings.prefect_login:
        return ""
    is_new = made_login(settings.state_dir)
    login, path = own_login(settings.state_dir), login_file(settings.state_dir)
    if is_new and sys.stdout.isatty():
        say(f"Prefect's login, made now: {login}\n  Its page asks for it once in each browser. It lies in {path}.")
    elif is_new:  # a log of this output may be read by others
        say(f"Prefect's login was made now and lies in {path}. Its page asks for it once in each browser.")
    return login


def _ports(
    settings: ServerSettings, names: Sequence[str], reservations: PortReservations, *, say: Say
) -> dict[str, int]:
    """A port for each server: the one that was named, else the usual one, else one that is free."""
    named = {settings.prefect_port, settings.mlflow_port}
    # Each a port that no other server here takes, not by chance either.
    spare = iter(port for port in free_ports(len(names) + 2) if port not in named)
    ports = {}
    for name in names:
        wanted = settings.port(name)
        if wanted is None:
            wanted = _usual_port(name, settings, next(spare), reservations, say=say)
        ports[name] = wanted or next(spare)
    return ports


def _usual_port(name: str, settings: ServerSettings, spare: int, reservations: PortReservations, *, say: Say) -> int:
    """The usual port; `spare` where somebody else has it, which is said."""
    usual = USUAL_PORTS[name]
    others = [settings.port(other) for other in USUAL_PORTS if other != name]
    other = "the other server is to take it" if usual in others else None
    problem = other or _why_taken(usual, settings.host, reservations)
    if problem is None:
        return usual
    _refuse_second(name, usual, settings.state_dir / name)
    say(
        f"{TITLES[name]} takes port {spare}, since its usual port {usual} cannot be used: {problem}. Set "
        f"{PORT_KEYS[name]} for one that stays the same."
    )
    return spare


def _why_taken(port: int, host: str, reservations: PortReservations) -> str | None:
    """Why the port cannot be had; None: it is free, and reserved here now."""
    if (problem := port_problem(port, host=host)) is not None:
        return problem
    return None if reservations.take(port) else "another `rlhf` of this machine is starting a server there"


def _refuse_second(name: str, port: int, folder: Path) -> None:
    """Two servers on one SQLite file would lock each other out.

    Raises:
        ServerError: a server of this very folder listens there, which no record names.
    """
    holder = port_process(port)
    with suppress(psutil.Error, OSError):
        if holder is not None and Path(holder.cwd()) == folder.resolve():
            raise ServerError(
                f"A {TITLES[name]} server of {folder.absolute()} runs already, as pid {holder.pid} on port {port}, and "
                f"no record names it (servers.json was removed or damaged). End it: kill {holder.pid}"
            )


def _port_problem(name: str, settings: ServerSettings, reservations: PortReservations) -> str | None:
    """Why a port that somebody named cannot be had."""
    port = settings.port(name)
    problem = _why_taken(port, settings.host, reservations) if port else None
    if problem is None:
        return None
    return (
        f"Port {port} for {TITLES[name]} cannot be used: {problem}. Set {PORT_KEYS[name]} to another port, or to 0 for "
        f"any free one; or, if a {TITLES[name]} server that you want runs there, set {URL_KEYS[name]}."
    )


def _database_problem(name: str, url: str | None) -> str | None:
    """Why that database cannot be used; whether it answers at all is tried, since MLflow would ask for 110 s."""
    if url is None:
        return None
    problem = database_problem(name, url)
    if problem is None and secrets_in_url(url) and any(url in word for word in sys.argv):
        problem = (
            f"the password of {shown_database(url)} stands in the command, where every user of this machine can read "
            f"it (`ps`). Set {DATABASE_VARIABLES[name]} to the URL instead, or put the password into the file that "
            "PGPASSFILE names."
        )
    if problem is None and (address := database_address(url)) is not None:
        try:
            socket.create_connection(address, timeout=_DATABASE_LIMIT_S).close()
        except OSError as error:
            problem = (
                f"no database answers at {address[0]}:{address[1]} ({error.strerror or error}). Start it, or correct "
                f"the URL {shown_database(url)}."
            )
    return None if problem is None else f"{TITLES[name]}: {problem}"
