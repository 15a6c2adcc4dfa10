"""The measured code, date and machine, for pages whose figures are to be compared."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from containers.harness.measure import cpu_model

PROJECT = Path(__file__).resolve().parents[1]


def commit() -> str:
    """Return the checkout's commit, with `-dirty` if files differ from it; pages, which a run writes, do not count."""

    def git(*words: str) -> str:
        found = subprocess.run(
            ["git", *words],  # noqa: S607 - as the developer's own
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        return found.stdout.strip()

    known = git("describe", "--always")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)*.md", ":(exclude)*.svg")
    return f"{known or 'unknown'}-dirty" if known and changed else known or "unknown"


def when_and_where(measured: str) -> str:
    """Return for example `24 November 2026, commit 60c7bdb; Python 3.11.7, AMD EPYC, 2 cores`.

    Args:
        measured: the commit at the beginning; files may change while it runs.
    """
    return (
        f"{datetime.now(UTC):%d %B %Y}, commit {measured}; Python {platform.python_version()}, {cpu_model()}, "
        f"{os.cpu_count()} cores"
    )
