"""Logins of the servers: chosen by a user, or made here."""

import ipaddress
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

from flows.servers.process import LOOPBACK, ServerError
from flows.servers.record import read_record
from tasks.config.logins import MLFLOW_PASSWORD, MLFLOW_USER, PREFECT_LOGIN, login_variables, mlflow_login

PREFECT_SERVER_LOGIN = "PREFECT_SERVER_API_AUTH_STRING"
_SHORTEST_PASSWORD = 12
_KEY_FILE = "flask_secret_key"
_LOCAL_NAMES = ("localhost", LOOPBACK, "[::1]")
_USER = "rlhf"
_FILE = "login"
_PASSWORD_BYTES = 24


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    try:
        found = {item[4][0] for item in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)


def demanded_logins(names: Sequence[str], *, host: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Name → `user:password` of each server that will demand a login.

    Beyond loopback both do. On loopback only Prefect does, and only if its own variable is set.

    Raises:
        ServerError: logins are missing or unusable; names all of them.
    """
    wide = not is_loopback(host)
    logins, problems = {}, []
    if "prefect" in names and (wide or variables.get(PREFECT_SERVER_LOGIN)):
        logins["prefect"] = variables.get(PREFECT_SERVER_LOGIN, "")
        problems += _prefect_problems(variables, wide=wide)
    if "mlflow" in names and wide:
        logins["mlflow"] = mlflow_login(variables)
        problems += _mlflow_problems(variables)
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        if not wide:
            raise ServerError(f"Nothing was started.\n{lines}")
        raise ServerError(
            f"Nothing was started: on {host} other machines reach the servers, so both demand a login there.\n{lines}\n"
            f"Or leave them on {LOOPBACK} and reach them through `ssh -L` (docs/servers.md)."
        )
    return logins


def _prefect_problems(variables: Mapping[str, str], *, wide: bool) -> list[str]:
    login, client = variables.get(PREFECT_SERVER_LOGIN, ""), variables.get(PREFECT_LOGIN)
    if not login:
        return [f"Prefect: set {PREFECT_SERVER_LOGIN} to `user:password`."]
    problems = [f"Prefect: {problem}" for problem in _weaknesses(PREFECT_SERVER_LOGIN, login, wide=wide)]
    if client and client != login:
        problems.append(
            f"Prefect: {PREFECT_LOGIN}, by which clients log in, differs from {PREFECT_SERVER_LOGIN}. Set both to the "
            f"same, or leave out {PREFECT_LOGIN}."
        )
    return problems


def _mlflow_problems(variables: Mapping[str, str]) -> list[str]:
    problems = [
        f"MLflow: set {name} to the {what} of its administrator."
        for name, what in ((MLFLOW_USER, "name"), (MLFLOW_PASSWORD, "password"))
        if not variables.get(name)
    ]
    if not problems:
        problems = [
            f"MLflow: {problem}" for problem in _weaknesses(MLFLOW_PASSWORD, mlflow_login(variables), wide=True)
        ]
    if find_spec("flask_wtf") is None:
        problems.append("MLflow: its login needs the package Flask-WTF: `pip install -e '.[team]'`.")
    return problems


def _weaknesses(variable: str, login: str, *, wide: bool) -> list[str]:
    user, colon, password = login.partition(":")
    if not (user and colon and password):
        return [f"{variable} has to read `user:password`."]
    if not login.isascii() or not login.isprintable():
        return [f"{variable} holds characters that are not printable ASCII; browsers would send others."]
    if wide and len(password) < _SHORTEST_PASSWORD:
        return [f"the password in {variable} has {len(password)} characters; at least {_SHORTEST_PASSWORD} are needed."]
    return []


def client_login(name: str, variables: Mapping[str, str]) -> str:
    """`user:password` that this process knows for a server of its own state folder; empty if it knows none."""
    if name == "mlflow":
        return mlflow_login(variables)
    return variables.get(PREFECT_LOGIN) or variables.get(PREFECT_SERVER_LOGIN) or ""


def flask_secret_key(folder: Path) -> str:
    """The key with which MLflow signs its forms: made once, kept in a file that only this user may read."""
    path = folder / _KEY_FILE
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileExistsError), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(secrets.token_hex(32))
    return path.read_text(encoding="ascii")


def names_of_this_machine(host: str) -> tuple[str, ...]:
    """The host names and addresses under which clients reach a server that listens on `host`."""
    if is_loopback(host):
        return _LOCAL_NAMES
    names = {*_LOCAL_NAMES, "host.docker.internal", socket.gethostname(), socket.getfqdn()}
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        addresses = (item.address for items in psutil.net_if_addrs().values() for item in items)
        names.update(written for address in addresses if (written := _as_host(address)))
    else:
        names.add(_as_host(host) or host)
    return tuple(sorted(names))


def _as_host(address: str) -> str:
    """An IP address as written in a URL; empty for anything else."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    return f"[{found}]" if found.version == 6 else str(found)


def login_file(state_dir: Path) -> Path:
    """File with the login of this state folder's Prefect."""
    return state_dir / "prefect" / _FILE


def made_login(state_dir: Path) -> bool:
    """Make a login if there is none; return whether it was made now.

    Raises:
        OSError: the folder cannot be written.
    """
    path = login_file(state_dir)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.chmod(0o700)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as stream:
            stream.write(f"{_USER}:{secrets.token_urlsafe(_PASSWORD_BYTES)}\n")
    except FileExistsError:
        path.chmod(0o600)
        return False
    return True


def own_login(state_dir: Path) -> str:
    """`user:password` of this state folder's Prefect.

    Raises:
        ServerError: the file does not hold one.
    """
    path = login_file(state_dir)
    try:
        login = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f"{path.absolute()}, which holds Prefect's login, cannot be read: {error}.") from error
    user, colon, password = login.partition(":")
    if not (user and colon and password and login.isprintable()):
        raise ServerError(
            f"{path.absolute()} has to hold Prefect's login as `user:password`. Remove the file, and the next start "
            "makes a new one."
        )
    return login


def known_login(state_dir: Path, api_url: str) -> dict[str, str]:
    """The variables by which clients log in at that address, if it is the running Prefect of this state folder."""
    for server in read_record(state_dir).servers:
        if server.has_own_login and server.lives and api_url.rstrip("/") == f"{server.url}/api":
            with suppress(ServerError):
                return login_variables("prefect", own_login(state_dir))
    return {}
