"""Find, before the first process starts, all known problems of the servers to start here."""

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
    """Plans for the start of these servers.

    Args:
        reservations: holds their ports from now on.

    Raises:
        ServerError: the host is not this machine; a login is missing; configured ports are taken or databases cannot be
            used (names all of them).
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
    """The login made for a Prefect here; empty if none is wanted. A terminal shows a new one once."""
    if "prefect" not in names or not settings.prefect_login:
        return ""
    is_new = made_login(settings.state_dir)
    login, path = own_login(settings.state_dir), login_file(settings.state_dir)
    if is_new and sys.stdout.isatty():
        say(f"Prefect's login, made now: {login}\n  Its page asks for it once in each browser. It is in {path}.")
    elif is_new:  # others may read a log of this output
        say(f"Prefect's login was made now and is in {path}. Its page asks for it once in each browser.")
    return login


def _ports(
    settings: ServerSettings, names: Sequence[str], reservations: PortReservations, *, say: Say
) -> dict[str, int]:
    """A port for each server: the configured one, else the usual one, else a free one."""
    named = {settings.prefect_port, settings.mlflow_port}
    # Free ports, without those that are configured for a server here.
    spare = iter(port for port in free_ports(len(names) + 2) if port not in named)
    ports = {}
    for name in names:
        wanted = settings.port(name)
        if wanted is None:
            wanted = _usual_port(name, settings, next(spare), reservations, say=say)
        ports[name] = wanted or next(spare)
    return ports


def _usual_port(name: str, settings: ServerSettings, spare: int, reservations: PortReservations, *, say: Say) -> int:
    """Return the usual port; if it is taken, say so and return `spare`."""
    usual = USUAL_PORTS[name]
    others = [settings.port(other) for other in USUAL_PORTS if other != name]
    other = "it is configured for the other server" if usual in others else None
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
    """Reserve the port, or return why it cannot be used; None: it was free, and is reserved here now."""
    if (problem := port_problem(port, host=host)) is not None:
        return problem
    return None if reservations.take(port) else "another `rlhf` of this machine is starting a server there"


def _refuse_second(name: str, port: int, folder: Path) -> None:
    """Refuse a second server on one SQLite file: the two would lock each other out.

    Raises:
        ServerError: a server of this folder listens there, and no record names it.
    """
    holder = port_process(port)
    with suppress(psutil.Error, OSError):
        if holder is not None and Path(holder.cwd()) == folder.resolve():
            raise ServerError(
                f"A {TITLES[name]} server of {folder.absolute()} runs already, as pid {holder.pid} on port {port}, and "
                f"no record names it (servers.json was removed or damaged). End it: kill {holder.pid}"
            )


def _port_problem(name: str, settings: ServerSettings, reservations: PortReservations) -> str | None:
    """Why a configured port cannot be used."""
    port = settings.port(name)
    problem = _why_taken(port, settings.host, reservations) if port else None
    if problem is None:
        return None
    return (
        f"Port {port} for {TITLES[name]} cannot be used: {problem}. Set {PORT_KEYS[name]} to another port, or to 0 for "
        f"any free one; or, if a {TITLES[name]} server that you want runs there, set {URL_KEYS[name]}."
    )


def _database_problem(name: str, url: str | None) -> str | None:
    """Why that database cannot be used. Tries to connect, since MLflow would retry for 110 s."""
    if url is None:
        return None
    problem = database_problem(name, url)
    if problem is None and secrets_in_url(url) and any(url in word for word in sys.argv):
        problem = (
            f"the password of {shown_database(url)} is in the command, where every user of this machine can read "
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
