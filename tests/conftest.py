"""What all tests share: where the real data lies, and a quiet numeric environment."""

import gc
import logging
import operator
import os
import random
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure, and the same tree gives the same result. `make test-search` looks for new examples.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("patient", _patient, derandomize=True)
settings.register_profile("searching", _patient, max_examples=3000)
settings.load_profile("patient")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A shell without a terminal starts background jobs with Ctrl-C ignored, `nohup` with SIGHUP ignored, and every child
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

PROJECT = Path(__file__).resolve().parents[1]
SHARED_DATA = Path(os.environ.get("RLHF_SHARED_DATA") or PROJECT.parent / "shared" / "data")


_MARKED_MODULE = re.compile(r"^pytestmark = (.+)$", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file whose every test `-m` leaves out is not imported: torch and trl take a process many seconds."""
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    marked = _MARKED_MODULE.search(collection_path.read_text(encoding="utf-8"))
    marks = set(re.findall(r"pytest\.mark\.(\w+)", marked[1])) if marked else set()
    return True if marks & _left_out(config.option.markexpr) else None


def _left_out(expression: str) -> set[str]:
    """The marks that an expression of nothing but `and` forbids."""
    parts = expression.split(" and ")
    if not all(re.fullmatch(r"(not )?\w+", part) for part in parts):
        return set()
    return {part.removeprefix("not ") for part in parts if part.startswith("not ")}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What imports leave in memory stays: garbage is looked for among the objects of tests only, not in a million."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before fixtures of a module make their models
def pytest_runtest_setup() -> None:
    """The same random weights and precision each time: an unseeded model passes a gate by luck once in a while."""
    random.seed(0)
    for library, seed in (("numpy", "random.seed"), ("torch", "manual_seed")):
        if library in sys.modules:
            operator.attrgetter(seed)(sys.modules[library])(0)
    # The first accelerator of a process decides the precision of all; one in bfloat16 would round later tests' figures.
    accelerate = sys.modules.get("accelerate.state")
    if accelerate and accelerate.AcceleratorState._shared_state.get("_mixed_precision") not in (None, "no"):
        accelerate.AcceleratorState._reset_state()


@pytest.fixture(autouse=True)
def loggers_speak() -> None:
    """Libraries that configure logging in this process switch off the loggers that they find, for all later tests."""
    logging.disable(logging.NOTSET)
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.disabled = False


@pytest.fixture(scope="session")
def project() -> Path:
    return PROJECT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real rows and tokenizer, which are not part of this repository."""
    if absent := _absent_data():
        pytest.skip(absent)
    return SHARED_DATA


@pytest.fixture
def project_beside_data(tmp_path: Path, project: Path) -> Path:
    """A folder with the project's configurations, of which those on real data find it at `../shared/data`."""
    folder = tmp_path / "beside" / "project"
    folder.mkdir(parents=True)
    (folder / "configs").symlink_to(project / "configs")
    (folder.parent / "shared").mkdir()
    (folder.parent / "shared" / "data").symlink_to(SHARED_DATA.resolve())
    return folder


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the real data bears the mark `shared_data`, and is skipped, with the reason, where there is none."""
    absent = _absent_data()
    for item in items:
        if _needs_real_data(item):
            item.add_marker(pytest.mark.shared_data)
        if absent and item.get_closest_marker("shared_data"):
            item.add_marker(pytest.mark.skip(reason=absent))


def _needs_real_data(item: pytest.Item) -> bool:
    """A test that takes the fixture, or whose parameter is a configuration that names the data."""
    if "shared_data" in getattr(item, "fixturenames", ()):
        return True
    parameters = getattr(item, "callspec", None)
    values = parameters.params.values() if parameters else ()
    return any(
        isinstance(value, Path) and value.suffix == ".yaml" and "shared/data" in value.read_text(encoding="utf-8")
        for value in values
    )


def _absent_data() -> str:
    """Why nothing can be tested on real data; empty: it is here."""
    if (SHARED_DATA / "README.md").is_file():
        return ""
    return f"REAL DATA ABSENT: {SHARED_DATA} is not there, so nothing was tested on it (set RLHF_SHARED_DATA)."
