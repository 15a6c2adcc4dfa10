"""What all tests share: where the real data lies, and a quiet numeric environment."""

import logging
import os
import signal
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
    folder = Path(os.environ.get("RLHF_SHARED_DATA", PROJECT.parent / "shared" / "data"))
    if not (folder / "README.md").is_file():
        pytest.skip(f"REAL DATA ABSENT: {folder} is not there, so nothing was tested on it (set RLHF_SHARED_DATA).")
    return folder
