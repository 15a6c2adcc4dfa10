"""Databases of servers that are started here: what their URLs may hold, how to show them, and their migrations.

Pure, except for looks at this Python's drivers and servers.
"""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

DATABASE_VARIABLES = {"prefect": "PREFECT_SERVER_DATABASE_CONNECTION_URL", "mlflow": "MLFLOW_BACKEND_STORE_URI"}
# The driver if the URL names none: SQLAlchemy's own choice for `postgresql` changed with its 2.1.
_DRIVERS: dict[str, dict[str, tuple[str, ...]]] = {
    "prefect": {"postgresql": ("asyncpg",), "sqlite": ("aiosqlite",)},
    "mlflow": {"postgresql": ("psycopg2", "psycopg"), "mysql": ("pymysql",), "sqlite": ("",)},
}

# Read as text: importing them would import both servers.
_MIGRATIONS = {
    "prefect": "server/database/_migrations/versions/sqlite",
    "mlflow": "store/db_migrations/versions",
}
_REVISION = re.compile(r"^revision(?:\s*:[^=]+)?\s*=\s*[\"'](\w+)[\"']", re.MULTILINE)
_BEFORE = re.compile(r"^down_revision(?:\s*:[^=]+)?\s*=\s*(\([^)]*\)|.*)$", re.MULTILINE)

Parents: TypeAlias = Mapping[str, tuple[str, ...]]


def with_driver(name: str, url: str) -> str:
    """The URL with the driver of this server, if it names none.

    Example: `postgresql://host/prefect` for Prefect gives `postgresql+asyncpg://host/prefect`.
    """
    scheme, colon, rest = url.partition(":")
    driver = _DRIVERS[name].get(scheme.lower(), ("",))[0]
    return f"{scheme}+{driver}{colon}{rest}" if driver else url


def database_problem(name: str, url: str) -> str | None:
    """Why a server cannot use this database, and what to write instead; None if it can.

    Example: `postgresql+psycopg2://host/prefect` for Prefect gives a sentence that offers `postgresql+asyncpg`.
    """
    shown = shown_database(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may hold a part of the password
        return f"`{shown}` is no database URL. In user and password, write `@ : / % ?` as %40 %3A %2F %25 %3F."
    problem = _scheme_problem(name, parts.scheme.lower(), shown)
    if problem is None and not parts.scheme.startswith("sqlite"):
        if not parts.path.strip("/"):
            problem = f"`{shown}` names no database. Write it after the host, as in {_EXAMPLE}."
        elif port == 0:
            problem = f"`{shown}` names port 0. Write the port that the database listens on, or none for its usual one."
    return problem


_EXAMPLE = "postgresql://user:password@host:5432/name"


def _scheme_problem(name: str, scheme: str, shown: str) -> str | None:
    kind, _, driver = scheme.partition("+")
    drivers = _DRIVERS[name].get(kind)
    if drivers is None:
        return f"`{shown}` is no database that this server works with. Write it like {_EXAMPLE}."
    if driver and driver not in drivers:
        return (
            f"`{shown}` names the driver {driver}; this server works with {' or '.join(drivers)}. Write `{kind}://…`."
        )
    needed = driver or drivers[0]
    if needed and find_spec(needed) is None:
        return f"`{shown}` needs the package {needed}, which this Python lacks: `pip install -e '.[team]'`."
    return None


def shown_database(url: str) -> str:
    """The URL without user, password and options (which may hold a password); for messages and records."""
    if url.startswith("sqlite"):
        return url.partition("?")[0]
    return re.sub(r"//.*@", "//", url).partition("?")[0]


def secrets_in_url(url: str) -> tuple[str, ...]:
    """The password as written and unquoted, to mask it in texts."""
    netloc = url.partition("//")[2].rpartition("@")[0]
    password = netloc.partition(":")[2]
    return tuple({password, unquote(password)} - {""})


def database_address(url: str) -> tuple[str, int] | None:
    """Host and port that must answer; None for a file or a socket."""
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite") or not parts.hostname:
        return None
    return parts.hostname, parts.port or (3306 if parts.scheme.startswith("mysql") else 5432)


def migrations_of(name: str) -> Parents:
    """Each migration of the installed server with its parents; empty if they cannot be found."""
    package = find_spec(name)
    folders = package.submodule_search_locations if package else None
    parents: dict[str, tuple[str, ...]] = {}
    for folder in folders or ():
        for file in Path(folder, _MIGRATIONS[name]).glob("*.py"):
            text = file.read_text(encoding="utf-8")
            revision, before = _REVISION.search(text), _BEFORE.search(text)
            if revision is not None:
                parents[revision[1]] = tuple(re.findall(r"[\"'](\w+)[\"']", before[1])) if before else ()
    return parents
