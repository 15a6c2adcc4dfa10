"""Whether the servers' own database files are as the installed Prefect and MLflow want them; nothing is started.

Both keep the last migration of a database in its table `alembic_version`. Their migrations are read as text: importing
them would import both servers.
"""

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from flows.servers.commands import TITLES

_MIGRATIONS = {
    "prefect": "server/database/_migrations/versions/sqlite",
    "mlflow": "store/db_migrations/versions",
}
_REVISION = re.compile(r"^revision(?:\s*:[^=]+)?\s*=\s*[\"'](\w+)[\"']", re.MULTILINE)
_BEFORE = re.compile(r"^down_revision(?:\s*:[^=]+)?\s*=\s*(\([^)]*\)|.*)$", re.MULTILINE)
_LOCKED_LIMIT_S = 1.0

Parents = Mapping[str, tuple[str, ...]]


def database_upgrade_lines(state_dir: Path, names: Iterable[str]) -> Iterator[str]:
    """What the next start does to each server's database file, or that it will not start; nothing where all is well.

    Args:
        names: `prefect`, `mlflow`: those that are started here on a file of their own.
    """
    for name in names:
        file = state_dir / name / f"{name}.db"
        revision, known = revision_of(file), migrations_of(name)
        if not revision or not known:
            continue
        installed = f"{TITLES[name]} {metadata.version(name)}"
        if revision not in known:
            yield (
                f"{file} was left by another, probably newer {TITLES[name]} (revision {revision}), and {installed}, "
                f"which is installed, will not start on it. Install that {TITLES[name]}, or restore a backup."
            )
            continue
        pending = set(known) - _with_ancestors(revision, known)
        if pending:
            how = "brings it up to date when it starts"
            if name == "mlflow":
                how += ", or asks for `python -m mlflow db upgrade`"
            yield (
                f"{file} is {len(pending)} migration{'s' if len(pending) > 1 else ''} behind {installed}, which {how}. "
                "There is no way back but a backup: copy the file first (docs/upgrading.md)."
            )


def revision_of(file: Path) -> str:
    """The last migration of an SQLite file; empty where there is none, or it cannot be read."""
    if not file.is_file():
        return ""
    try:
        address = f"file:{quote(str(file.absolute()))}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=_LOCKED_LIMIT_S)) as database:
            found = database.execute("select version_num from alembic_version").fetchone()
    except sqlite3.Error:
        return ""
    return str(found[0]) if found else ""


def migrations_of(name: str) -> Parents:
    """Each migration of the installed server with those before it; empty where they cannot be found."""
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


def _with_ancestors(revision: str, parents: Parents) -> set[str]:
    found, waiting = set[str](), [revision]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(parents.get(name, ()))
    return found
