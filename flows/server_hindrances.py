"""Everything that is known to hinder servers that are to be started here, found before the first process."""

import os
import socket
import sys
from collections.abc import Sequence

from flows.server_databases import (
    DATABASE_VARIABLES,
    database_address,
    database_problem,
    secrets_in_url,
    shown_database,
)
from flows.server_logins import demanded_logins
from flows.server_plans import PORT_KEYS, TITLES, URL_KEYS, server_plan
from flows.server_process import ServerError, ServerPlan, free_ports, host_problem, port_problem
from flows.server_settings import ServerSettings

_DATABASE_LIMIT_S = 10.0


def planned_servers(settings: ServerSettings, names: Sequence[str]) -> list[ServerPlan]:
    """How to start these servers.

    Raises:
        ServerError: the host is not ours; a login is missing; ports are taken or databases cannot be used, all of them
            at once.
    """
    if (problem := host_problem(settings.host)) is not None:
        raise ServerError(problem)
    logins = demanded_logins(names, host=settings.host, variables=os.environ)
    ports = {"prefect": settings.prefect_port, "mlflow": settings.mlflow_port}
    problems = [problem for name in names if (problem := _port_problem(name, ports[name], settings.host))]
    problems += [problem for name in names if (problem := _database_problem(name, settings.database(name)))]
    if problems:
        raise ServerError("\n".join(problems))
    return [
        server_plan(
            name,
            settings.state_dir.resolve(),
            ports[name] or spare,
            host=settings.host,
            database=settings.database(name),
            login=logins.get(name, ""),
        )
        for name, spare in zip(names, free_ports(len(names)), strict=True)
    ]


def _port_problem(name: str, port: int, host: str) -> str | None:
    problem = port_problem(port, host=host) if port else None
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
