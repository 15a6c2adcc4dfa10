"""Where self-tests are kept: in the store, a file for each profile and machine, the newest only."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from containers.contracts.configs.selftest import Selftest
from containers.contracts.digests import write_atomically

FOLDER = "selftest"
_RUNNING = "running-"


def selftest_file(store_dir: Path, *, profile: str, host: str) -> Path:
    """The file of that profile on that machine."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{profile}-{host}")
    return store_dir / FOLDER / f"{name}.json"


def keep_selftest(store_dir: Path, selftest: Selftest) -> Path:
    """Write it, in the place of an older one of the same profile and machine; return the file."""
    path = selftest_file(store_dir, profile=selftest.profile, host=selftest.host)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, selftest.model_dump_json(indent=2) + "\n")
    return path


def kept_selftests(store_dir: Path) -> Iterator[Selftest]:
    """Those of this store, the newest first; a file that cannot be read is left out."""
    found = (Selftest.read_if_valid(path) for path in (store_dir / FOLDER).glob("*.json"))
    yield from sorted(filter(None, found), key=lambda one: one.made_at, reverse=True)


@contextmanager
def working_folder(store_dir: Path) -> Iterator[Path]:
    """Yield a folder of the store for what probes write, deleted at the end: a model for vLLM has gigabytes.

    What programs that were killed left of theirs is deleted, too.
    """
    place = store_dir / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    for left in place.glob(f"{_RUNNING}*"):
        pid = left.name.removeprefix(_RUNNING).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    prefix = f"{_RUNNING}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()
