"""Probe `container`: the contract as a stage measures it, and whether libraries load from the cache folders."""

import ctypes
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from containers.harness.measure import measure_contract
from containers.selftest.probe import Bench, Findings


def probe(bench: Bench, found: Findings) -> None:
    """Compare the contract, and load a library from each folder of `request.cache_variables` and from the home."""
    measured = measure_contract(bench.context.spec)
    found.add("findings", len(measured.findings), "findings")
    found.add("drifted", len(measured.drifted), "findings")
    found.notes += [
        f"{one.name}: wanted {one.wanted}, found {one.found}. {one.advice}".rstrip() for one in measured.drifted
    ]
    library = smallest_library()
    for name in bench.request.cache_variables:
        folder = os.environ.get(name)
        problem = f"{name} is not set" if folder is None else why_not_loaded(library, Path(folder))
        found.add("loads", float(not problem), "yes", of=name)
        if problem:
            found.notes.append(f"{name}: {problem}.")
    if problem := why_not_loaded(library, Path.home()):
        found.notes.append(f"The home cannot hold compiled libraries ({problem}); the stages' caches are elsewhere.")


def why_not_loaded(library: Path, folder: Path) -> str:
    """Return why a copy of that library cannot be loaded from the folder, as a clause; empty if it can."""
    copy = folder / f"selftest-{os.getpid()}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library, copy)
        loaded = ctypes.CDLL(str(copy))
        # A file of the same name or number that is still loaded would not be read again.
        ctypes.CDLL(None).dlclose(ctypes.c_void_p(loaded._handle))
    except OSError as error:
        return f"a library in {folder} cannot be loaded: {error}"
    finally:
        with suppress(OSError):  # there is no file, or no folder
            copy.unlink()
    return ""


def smallest_library() -> Path:
    """Return the smallest extension module that this interpreter has loaded."""
    specs = (getattr(module, "__spec__", None) for module in [*sys.modules.values()])
    files = {Path(origin) for spec in specs if (origin := getattr(spec, "origin", None))}
    return min((file for file in files if file.suffix == ".so"), key=lambda file: file.stat().st_size)
