"""Whether this process can use a server: its address, its health and its login."""

import http.client
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from flows.servers.commands import TITLES, URL_KEYS
from flows.servers.databases import shown_database
from flows.servers.logins import known_login
from flows.servers.process import ServerError, answer, health_problem
from tasks.config.logins import (
    INSIDE_PATHS,
    LOGIN_VARIABLES,
    OWNER_VARIABLES,
    URL_VARIABLES,
    address_problem,
    is_given_for,
    login_headers,
    login_in,
    login_problem,
    login_variables,
    without_login,
)

_LIMIT_S = 10.0


def access_problem(name: str, url: str, *, variables: Mapping[str, str]) -> str | None:
    """Why a healthy server refuses this process, and which variable to set; None if it does not.

    Args:
        url: Prefect's address ends in `/api`.
        variables: the environment that Prefect's and MLflow's own clients read.
    """
    headers = login_headers(name, variables)
    if name == "prefect" and headers.get("Authorization", "").startswith("Bearer "):
        return None  # a hosted Prefect, which lacks this path
    status, seen = answer(url.rstrip("/") + INSIDE_PATHS[name], headers=headers, timeout_s=_LIMIT_S)
    if status == http.client.UNAUTHORIZED:
        if headers:
            return f"it refuses the login in {LOGIN_VARIABLES[name]} ({seen}); set it to one that the server knows"
        made = "; one that `rlhf` made is in outputs/.servers/prefect/login of the folder it was started in"
        return f"it demands a login ({seen}); set {LOGIN_VARIABLES[name]}{made if name == 'prefect' else ''}"
    if status == http.client.FORBIDDEN and name == "mlflow":
        return f"it refuses requests under this name ({seen}); add the name to its --allowed-hosts"
    return None


def usable_address(
    name: str, url: str | None, *, state_dir: Path, say: Callable[[str], None]
) -> tuple[str | None, dict[str, str]]:
    """Return the configured address without its login, and the variables that give clients that login.

    A login for another address is not used. An MLflow that cannot be used causes only a warning, since a run goes on
    without it.

    Args:
        state_dir: of servers that are started here; the login of one that runs there is known.

    Raises:
        ServerError: the address cannot be used.
    """
    if url is None:
        return None, {}
    problem = address_problem(name, _without_login_however_wrong(url))
    if problem is not None:
        raise ServerError(f"{URL_KEYS[name]}: {problem}")
    if not url.lower().startswith("http"):
        _refuse_password(name, url)
        if problem := login_problem(name, url, os.environ):
            raise ServerError(f"{URL_KEYS[name]}: {problem}")
        return url, {}  # a database
    bare, login = without_login(url), login_in(url)
    own = {} if login else known_login(state_dir, bare)
    learnt = login_variables(name, login) if login else own
    if not (login or own) and (problem := login_problem(name, url, os.environ)):
        raise ServerError(f"{URL_KEYS[name]}: {problem}")
    if learnt:
        learnt[OWNER_VARIABLES[name]] = bare
    elif not is_given_for(name, url, os.environ):
        learnt[OWNER_VARIABLES[name]] = os.environ.get(URL_VARIABLES[name], "")
    problem = _problem(name, bare, variables={**os.environ, **learnt})
    if problem is not None and name == "prefect":
        raise ServerError(f"{URL_KEYS[name]}: {problem}")
    if problem is not None:
        say(
            f"Warning: {problem} ({URL_KEYS[name]}) A run goes on and keeps MLflow's data on disk; the next run in "
            "the same folder delivers it."
        )
    return bare, learnt


def _problem(name: str, bare: str, *, variables: Mapping[str, str]) -> str | None:
    """What is wrong with a server that was not started here, and what to do."""
    seen = health_problem(bare.rstrip("/") + "/health", timeout_s=_LIMIT_S)
    if seen is not None:
        hint = "" if name == "mlflow" or bare.rstrip("/").endswith("/api") else " A Prefect address ends in /api."
        return (
            f"no healthy {TITLES[name]} server at {bare} ({seen}).{hint} Start that server, correct the address, or "
            "leave the key out to have one started here."
        )
    refused = access_problem(name, bare, variables=variables)
    return None if refused is None else f"the {TITLES[name]} server at {bare} cannot be used: {refused}."


def _without_login_however_wrong(url: str) -> str:
    """As `without_login`, also for addresses that cannot be parsed."""
    head, slashes, rest = url.partition("//")
    netloc, slash, path = rest.partition("/")
    return f"{head}{slashes}{netloc.rpartition('@')[2]}{slash}{path}"


def _refuse_password(name: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.password or "password=" in parts.query:
        raise ServerError(
            f"{URL_KEYS[name]}: {shown_database(url)} came with a password, and the address is recorded with every "
            "run. Put the password into the file that PGPASSFILE names, or give the address of an MLflow server."
        )


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables in the environment of this process during the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
