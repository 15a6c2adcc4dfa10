"""A real PostgreSQL of one test session's own, from Debian's package: on loopback, any free port, gone afterwards."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

USER = "rlhf"
# Everything in it that a URL has to write otherwise.
PASSWORD = "p@ss/w:rd%canary-71c0"


@dataclass(frozen=True)
class Postgres:
    port: int
    programs: Path

    def url(self, database: str, *, password: str = PASSWORD) -> str:
        """Without a driver."""
        return f"postgresql://{USER}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def run(self, sql: str, *, database: str = "postgres") -> str:
        command = [str(self.programs / "psql"), "-qAt", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, database]
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        asked = subprocess.run([*command, "-c", sql], env=environment, capture_output=True, text=True, check=True)
        return asked.stdout.strip()


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("POSTGRESQL IS NOT INSTALLED, so nothing was tested on it (apt-get install postgresql).")
    programs = found[-1].parent
    # It refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="rlhf-postgres-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    try:
        (folder / "password").write_text(PASSWORD)
        if user:
            for path in (folder, folder / "password"):
                shutil.chown(path, user)
        data = str(folder / "data")
        init = ["-D", data, "-U", USER, f"--pwfile={folder / 'password'}", "-A", "scram-sha-256", "--no-sync"]
        subprocess.run([programs / "initdb", *init], user=user, cwd=folder, check=True, capture_output=True)
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        control = [programs / "pg_ctl", "-D", data, "-w"]
        subprocess.run(
            [*control, "-l", str(folder / "log"), "-o", options, "start"],
            user=user,
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield Postgres(port, programs)
        finally:
            stop = [*control, "-m", "immediate", "stop"]
            subprocess.run(stop, user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
