"""Which address a login was given for. It goes there and to no other, whatever a configuration or a form names.

The login of an environment belongs to the server that the same environment names; so does MLflow's own file of logins.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tasks.service_logins import LOGIN_VARIABLES, MLFLOW_PASSWORD, MLFLOW_USER, PREFECT_LOGIN, without_login

URL_VARIABLES = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}
# Where a configuration names a server, and the variable above comes to name it too: what that variable named before.
OWNER_VARIABLES = {"prefect": "RLHF_PREFECT_LOGIN_ADDRESS", "mlflow": "RLHF_MLFLOW_LOGIN_ADDRESS"}
_SECRETS = {
    "prefect": (PREFECT_LOGIN, "PREFECT_API_KEY"),
    "mlflow": (MLFLOW_USER, MLFLOW_PASSWORD, "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_AUTH"),
}
_DATABASE_PASSWORD = "PGPASSWORD"  # noqa: S105 - the name of a variable
_MLFLOW_FILE = "~/.mlflow/credentials"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class LoginAddressError(Exception):
    """A server was named that the login at hand was not given for; nothing was sent."""


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of an address: who gets what is sent there.

    Example: `HTTP://team:x@Host/api` gives `("http", "host", 80)`.
    """
    parts = urlsplit(url.strip())
    try:
        port = parts.port
    except ValueError:  # no number, or none of a port: the same as no other address
        port = -1
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").rstrip("."), port if port is not None else _DEFAULT_PORTS.get(scheme)


def is_given_for(name: str, url: str, variables: Mapping[str, str]) -> bool:
    """Whether the login of these variables was given for that address."""
    owner = variables.get(OWNER_VARIABLES[name], variables.get(URL_VARIABLES[name], ""))
    if not owner or origin(owner) != origin(url):
        return False
    # The options of a database name hosts, files and services of their own.
    return origin(url)[0] in _DEFAULT_PORTS or urlsplit(url).query in ("", urlsplit(owner).query)


def login_problem(name: str, url: str, variables: Mapping[str, str]) -> str | None:
    """Why that server may not be talked to with the login at hand, and what to do; None where it may, or there is none.

    Args:
        name: `prefect` or `mlflow`.
        url: of the server; another database than the environment's gets no password of it either.
    """
    held = _held(name, url, variables)
    if held is None or is_given_for(name, url, variables):
        return None
    owner = variables.get(OWNER_VARIABLES[name], variables.get(URL_VARIABLES[name], ""))
    scheme, host, port = origin(url)
    of = f"is for {without_login(owner)}" if owner else f"is for no address, since {URL_VARIABLES[name]} is not set"
    return (
        f"{scheme}://{host}{f':{port}' if port else ''} is not the address that the login in {held} was given for: "
        f"that {of}. Nothing was sent. If it is right, set {URL_VARIABLES[name]} to it; else leave it out of the "
        "configuration."
    )


def require_given_for(name: str, url: str) -> None:
    """See to it that no login of this process goes to an address that it was not given for.

    Raises:
        LoginAddressError: there is such a login.
    """
    problem = login_problem(name, url, os.environ)
    if problem is not None:
        raise LoginAddressError(problem)
    if not is_given_for(name, url, os.environ):
        os.environ["NETRC"] = os.devnull  # whose `default` goes to every address


def _held(name: str, url: str, variables: Mapping[str, str]) -> str | None:
    """Where a login is that the server's client would send, in words."""
    if origin(url)[0] not in _DEFAULT_PORTS:
        return _DATABASE_PASSWORD if variables.get(_DATABASE_PASSWORD) and "postgres" in origin(url)[0] else None
    if any(variables.get(variable) for variable in _SECRETS[name]):
        return LOGIN_VARIABLES[name]
    return _MLFLOW_FILE if name == "mlflow" and Path(_MLFLOW_FILE).expanduser().is_file() else None
