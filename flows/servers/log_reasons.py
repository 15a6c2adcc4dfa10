"""Why a server does not start, from its own log: reason and advice in place of a traceback. Pure.

None of these reasons goes away, so do not wait for such a server: MLflow retries a database that refuses its password
for 110 s.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from flows.servers.databases import migrations_of

_LOG_TAIL_BYTES = 256 * 1024


@dataclass(frozen=True)
class LogReason:
    """A sign in a server's log and what it means.

    Attributes:
        sign: regular expression; its groups fill `{0}`, `{1}` of the text.
        text: what is wrong and what to do; `{database}` is the database as it may be shown, `{python}` this Python.
    """

    sign: str
    text: str
    applies: Callable[[re.Match[str]], bool] = lambda found: True


def reason_in(log: str, *, database: str, python: str = "python") -> str | None:
    """Why the server cannot start, and what to do; None if the log shows no known reason.

    Args:
        database: as `shown_database` gives it.
        python: the interpreter that runs the servers, for commands in the advice.
    """
    for reason in _REASONS:
        for found in re.finditer(reason.sign, log):
            if reason.applies(found):
                return reason.text.format(*found.groups(), database=database, python=python)
    return None


def read_log(path: Path) -> str:
    """The last 256 KiB of a log; empty if there is none."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            return stream.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def masked(text: str, secrets: Iterable[str]) -> str:
    """The text with `***` in place of each secret, longest first."""
    for secret in sorted(set(secrets) - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


_BACKUP = "Make a backup first (docs/servers.md)."
_REASONS = (
    LogReason(
        r"Detected out-of-date database schema \(found version (\w+), but expected (\w+)\)",
        "its database {database} was made by an older MLflow (schema {0}, wanted {1}). Upgrade it: "
        f"`{{python}} -m mlflow db upgrade <its URL>`. {_BACKUP}",
        applies=lambda found: found[1] in migrations_of("mlflow"),  # so it can upgrade from there
    ),
    LogReason(
        r"Detected out-of-date database schema \(found version (\w+), but expected (\w+)\)",
        "its database {database} was left by another, probably newer MLflow (schema {0}, this one knows up to {1}). "
        "Use that MLflow, restore a backup, or name another database.",
    ),
    LogReason(
        r"Can't locate revision identified by '(\w+)'",
        "its database {database} was left by a newer Prefect (revision {0}, which this one does not know). Use that "
        "Prefect, restore a backup, or name another database.",
    ),
    LogReason(
        r'password authentication failed for user "([^"]*)"',
        "the database {database} refuses the password of user `{0}`. Correct it in the URL (write `@ : / % ?` as "
        "%40 %3A %2F %25 %3F) or in the file that PGPASSFILE names.",
    ),
    LogReason(
        r"fe_sendauth: no password supplied",
        "the database {database} needs a password and got none. Write it into the URL, or into the file that "
        "PGPASSFILE names.",
    ),
    LogReason(
        r'database "([^"]*)" does not exist',
        "there is no database `{0}` at {database}. Make it (`createdb {0}`), or correct the URL.",
    ),
    LogReason(
        r'role "([^"]*)" does not exist',
        "the database {database} has no user `{0}`. Make it (`createuser -P {0}`), or correct the URL.",
    ),
    LogReason(
        r'no pg_hba\.conf entry for host "([^"]*)"',
        "the database {database} refuses connections from {0}. Allow them in its pg_hba.conf.",
    ),
    LogReason(
        r'permission denied to create extension "(\w+)"',
        "its user may not add the extension {0} to {database}, which Prefect needs. As the database's owner: "
        "`CREATE EXTENSION {0};`.",
    ),
    LogReason(
        r"permission denied for (?:schema|database) (\w+)",
        "its user may not make tables in `{0}` of {database}. Make that user the owner of the database.",
    ),
    LogReason(
        r"could not translate host name \"([^\"]*)\"",
        "the host `{0}` of its database cannot be found. Correct the URL.",
    ),
    LogReason(
        r"file is not a database",
        "its database {database} is no SQLite file; the file is damaged (file is not a database). Restore a backup, or "
        "move the file away to begin with an empty one.",
    ),
    LogReason(
        r"(?:No space left on device|database or disk is full)",
        "the disk that holds its state is full. Free space there.",
    ),
)
