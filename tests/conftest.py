"""What all tests share: where the real data lies, and a quiet numeric environment."""

import os
import signal
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A shell without a terminal starts background jobs with Ctrl-C ignored, and every child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def project() -> Path:
    return PROJECT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = Path(os.environ.get("RLHF_SHARED_DATA", PROJECT.parent / "shared" / "data"))
    if not (folder / "README.md").is_file():
        pytest.skip(f"REAL DATA ABSENT: {folder} is not there, so nothing was tested on it (set RLHF_SHARED_DATA).")
    return folder
