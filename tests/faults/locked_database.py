"""Somebody else who holds a server's SQLite database locked for a while, as a backup or a forgotten shell does."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def locked_database(database: Path, *, at_least_s: float) -> Iterator[None]:
    """Hold the database so that nobody else can write: as long as the block lasts, and no less than so many seconds."""
    assert database.is_file(), f"no database at {database}"
    with closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        until = time.monotonic() + at_least_s
        try:
            yield
            time.sleep(max(0.0, until - time.monotonic()))
        finally:
            connection.execute("ROLLBACK")
