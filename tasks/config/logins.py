"""Addresses of servers, and their logins, each of which goes only to the server that it was given for."""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

PREFECT_LOGIN = "PREFECT_API_AUTH_STRING"
MLFLOW_USER = "MLFLOW_TRACKING_USERNAME"
MLFLOW_PASSWORD = "MLFLOW_TRACKING_PASSWORD"  # noqa: S105 - the name of a variable
# What to set, in messages.
LOGIN_VARIABLES = {"prefect": PREFECT_LOGIN, "mlflow": f"{MLFLOW_USER} and {MLFLOW_PASSWORD}"}

# Requests that need the server's login, unlike its health check; Prefect's follows its `/api`.
INSIDE_PATHS = {"prefect": "/admin/version", "mlflow": "/api/2.0/mlflow/experiments/search?max_results=1"}
# Databases that MLflow opens itself, each also with a driver: `postgresql+psycopg2`.
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_ADVICE = {
    "prefect": "Give the address of its API, such as http://host:4200/api, or leave it out to have one started here.",
    "mlflow": "Give a server, such as http://host:5000, or a database, such as sqlite:////data/mlflow.db, or leave it "
    "out to have one started here.",
}
URL_VARIABLES = {"prefect": "PREFECT_API_URL", "mlflow": "MLFLOW_TRACKING_URI"}
# What the variable above named before it was set to the server of a configuration.
OWNER_VARIABLES = {"prefect": "RLHF_PREFECT_LOGIN_ADDRESS", "mlflow": "RLHF_MLFLOW_LOGIN_ADDRESS"}
_SECRETS = {
    "prefect": (PREFECT_LOGIN, "PREFECT_API_KEY"),
    "mlflow": (MLFLOW_USER, MLFLOW_PASSWORD, "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_AUTH"),
}
_DATABASE_PASSWORD = "PGPASSWORD"  # noqa: S105 - the name of a variable
_MYSQL_PASSWORD = "MYSQL_PWD"  # noqa: S105 - the name of a variable
_PASSWORD_FILE, _DEFAULT_PASSWORD_FILE = "PGPASSFILE", "~/.pgpass"
# libpq finds a password in its file by the host; with these options it sends it elsewhere, or reads another file.
_MISLEADING_OPTIONS = frozenset({"hostaddr", "passfile", "service"})
_MLFLOW_FILE = "~/.mlflow/credentials"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def login_headers(name: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The header that Prefect's or MLflow's own client would send; empty where no login is set."""
    token, login = (
        (variables.get("PREFECT_API_KEY"), variables.get(PREFECT_LOGIN))
        if name == "prefect"
        else (variables.get("MLFLOW_TRACKING_TOKEN"), mlflow_login(variables))
    )
    if login:
        return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    return {"Authorization": f"Bearer {token}"} if token else {}


def mlflow_login(variables: Mapping[str, str]) -> str:
    """`user:password`; empty where either is missing."""
    user, password = variables.get(MLFLOW_USER), variables.get(MLFLOW_PASSWORD)
    return f"{user}:{password}" if user and password else ""


def login_variables(name: str, login: str) -> dict[str, str]:
    """The variables that give a client `user:password`."""
    if name == "prefect":
        return {PREFECT_LOGIN: login}
    user, _, password = login.partition(":")
    return {MLFLOW_USER: user, MLFLOW_PASSWORD: password}


def without_login(url: str) -> str:
    """The same address without user and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def login_in(url: str) -> str:
    """`user:password` where an address holds both, decoded; else empty."""
    parts = urlsplit(url)
    return f"{unquote(parts.username)}:{unquote(parts.password)}" if parts.username and parts.password else ""


def address_problem(name: str, address: str) -> str | None:
    """Why this cannot be the address of `prefect` or `mlflow`, and what to do; None if it can.

    A folder cannot: MLflow's store of plain files takes no new runs.
    """
    try:
        parts = urlsplit(address)
        if parts.scheme in ("http", "https"):
            found = "names no host" if not parts.hostname else "names port 0" if parts.port == 0 else None
        elif name == "mlflow" and (parts.scheme.partition("+")[0] in _DATABASES or _is_databricks(address)):
            found = None
        else:
            found = f"is no http(s) address{' and no database' if name == 'mlflow' else ''}"
    except ValueError as error:
        found = f"is no address ({error})"
    return None if found is None else f"`{address}` {found}. {_ADVICE[name]}"


def _is_databricks(address: str) -> bool:
    return address.partition(":")[0] in ("databricks", "databricks-uc")


class LoginAddressError(Exception):
    """The login of this process was given for another server than the one named; nothing was sent."""


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of an address: the receiver of what is sent there.

    Example: `HTTP://team:x@Host/api` gives `("http", "host", 80)`.
    """
    parts = urlsplit(url.strip())
    try:
        port = parts.port
    except ValueError:  # no valid port: equal to no valid address
        port = -1
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").rstrip("."), port if port is not None else _DEFAULT_PORTS.get(scheme)


def is_given_for(name: str, url: str, variables: Mapping[str, str]) -> bool:
    """Whether the login of these variables was given for that address."""
    owner = _owner(name, variables)
    if not owner or origin(owner) != origin(url):
        return False
    return origin(url)[0] in _DEFAULT_PORTS or _has_options_of(owner, url)


def _owner(name: str, variables: Mapping[str, str]) -> str:
    """The address that the login of these variables was given for; empty: none."""
    return variables.get(OWNER_VARIABLES[name], variables.get(URL_VARIABLES[name], ""))


def _has_options_of(owner: str, url: str) -> bool:
    """Whether what follows the host leads a database's client to the same place as the owner's address.

    SQLAlchemy ends a host at other characters than `urlsplit` does, so `#` and a later `@` count too.
    """
    if owner.strip() == url.strip():
        return True
    own, named = urlsplit(owner.strip()), urlsplit(url.strip())
    return named.query == own.query and not named.fragment and "@" not in named.path


def login_problem(name: str, url: str, variables: Mapping[str, str]) -> str | None:
    """Why the login at hand must not go to that server, and what to do; None if it may, or there is no login.

    Args:
        name: `prefect` or `mlflow`.
        url: of the server, or of a database: only the environment's gets its password.
    """
    held = _held(name, url, variables)
    if held is None or is_given_for(name, url, variables):
        return None
    owner = _owner(name, variables)
    scheme, host, port = origin(url)
    shown = f"{scheme}://{host}{f':{port}' if port else ''}"
    advice = (
        f"Nothing was sent. If it is right, set {URL_VARIABLES[name]} to it; else leave it out of the configuration."
    )
    if owner and origin(owner) == origin(url):
        return (
            f"The address at {shown} differs in what follows the host from the one that the login in {held} was given "
            f"for, and options there can name another host. {advice}"
        )
    of = f"is for {_shown(owner)}" if owner else f"is for no address, since {URL_VARIABLES[name]} is not set"
    return f"{shown} is not the address that the login in {held} was given for: that {of}. {advice}"


def _shown(owner: str) -> str:
    """An address without user, password and options, among which can be passwords too."""
    return without_login(urlsplit(owner)._replace(query="", fragment="").geturl())


def require_given_for(name: str, url: str) -> None:
    """Ensure that no login of this process goes to an address that it was not given for.

    Raises:
        LoginAddressError: a login would.
    """
    problem = login_problem(name, url, os.environ)
    if problem is not None:
        raise LoginAddressError(problem)
    if not is_given_for(name, url, os.environ):
        os.environ["NETRC"] = os.devnull  # its `default` goes to every address


def _held(name: str, url: str, variables: Mapping[str, str]) -> str | None:
    """The place of the login that the server's client would send, for messages."""
    if origin(url)[0] not in _DEFAULT_PORTS:
        return _held_for_database(url, variables)
    if any(variables.get(variable) for variable in _SECRETS[name]):
        return LOGIN_VARIABLES[name]
    return _MLFLOW_FILE if name == "mlflow" and Path(_MLFLOW_FILE).expanduser().is_file() else None


def _held_for_database(url: str, variables: Mapping[str, str]) -> str | None:
    if "mysql" in origin(url)[0] or "mariadb" in origin(url)[0]:
        return _MYSQL_PASSWORD if variables.get(_MYSQL_PASSWORD) else None
    if "postgres" not in origin(url)[0]:
        return None
    if variables.get(_DATABASE_PASSWORD):
        return _DATABASE_PASSWORD
    file = Path(variables.get(_PASSWORD_FILE) or _DEFAULT_PASSWORD_FILE).expanduser()
    options = parse_qs(urlsplit(url.strip()).query, keep_blank_values=True)
    return f"the password file {file}" if file.is_file() and _MISLEADING_OPTIONS & options.keys() else None
