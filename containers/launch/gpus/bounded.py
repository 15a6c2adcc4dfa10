"""Ask a program that a hung driver may hold, within a time limit."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

_KILL_GRACE_S = 2.0
_SHOWN_CHARACTERS = 200


class NoAnswerError(Exception):
    """A tool gave no usable answer; the message says why."""


def run_bounded(command: Sequence[str], *, name: str, timeout_s: float) -> tuple[int, str, str]:
    """Exit code, output and errors of a program, which is killed with its children at the limit.

    It has its own process group, because a killed script's child would keep the pipes open.

    Args:
        name: of the program, for messages.

    Raises:
        NoAnswerError: it cannot be started, or did not end in time.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswerError(f"{name} cannot be started: {error.strerror or error}") from error
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that waits for a dead driver cannot be killed; do not wait for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_KILL_GRACE_S)
        raise NoAnswerError(f"{name} did not answer within {timeout_s:g} s and was killed") from error
    return process.returncode, output, errors


def shortened(text: str) -> str:
    """The beginning of a tool's output, for a message."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
