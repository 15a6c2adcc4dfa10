"""The login of a Prefect that is started here: random, made once, kept in a file that only its owner may read.

Other users of the machine reach loopback too, and a user who reaches Prefect can run code as its user.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from flows.servers.process import ServerError
from flows.servers.record import read_record
from tasks.config.logins import login_variables

_USER = "rlhf"
_FILE = "login"
_PASSWORD_BYTES = 24


def login_file(state_dir: Path) -> Path:
    """Where the login of the Prefect of this state folder lies."""
    return state_dir / "prefect" / _FILE


def made_login(state_dir: Path) -> bool:
    """See that there is a login; whether it was made now.

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
    """`user:password`.

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
    """The variables by which clients log in at that address, where it is the running Prefect of this state folder."""
    for server in read_record(state_dir).servers:
        if server.has_own_login and server.lives and api_url.rstrip("/") == f"{server.url}/api":
            with suppress(ServerError):
                return login_variables("prefect", own_login(state_dir))
    return {}
