"""Runs nvidia-smi, bounded in time, and takes its answer apart. What it reports of GPUs is read in `gpus`."""

import contextlib
import csv
import os
import shutil
import signal
import subprocess
from typing import Literal, TypeVar

Number = TypeVar("Number", int, float)
Question = Literal["--query-gpu", "--query-compute-apps", "--query-remapped-rows"]

_NOT_AVAILABLE = ("n/a", "not supported", "not available", "insufficient permissions", "unknown error", "deprecated")
_KILL_GRACE_S = 2.0
_SHOWN_CHARACTERS = 200
MISSING = "nvidia-smi is not on PATH: there is no NVIDIA driver here"


class NvidiaSmiError(Exception):
    """The tool gave no answer that can be believed; the message says why."""


def find_tool() -> str:
    """Where nvidia-smi lies. Raises NvidiaSmiError where it is not on PATH."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise NvidiaSmiError(MISSING)
    return tool


def query(tool: str, what: Question, fields: tuple[str, ...], *, timeout_s: float) -> list[list[str]]:
    """A row of cells for each line of the answer; only the last cell may hold commas.

    Raises:
        NvidiaSmiError: another exit code than 0, a line that cannot be read, or no answer in time.
    """
    command = [tool, f"{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    exit_code, output, errors = _run_bounded(command, timeout_s=timeout_s)
    said = shortened(" ".join((errors + "\n" + output).split()))
    if exit_code:
        raise NvidiaSmiError(f"nvidia-smi ended with exit code {exit_code}: {said or 'it said nothing'}")
    rows = []
    for line in output.splitlines():
        if not line.strip() or line.strip().lower().startswith("no devices were found"):
            continue
        # Only the last field may hold commas.
        row = [cell.strip() for cell in next(csv.reader([line], quoting=csv.QUOTE_NONE))]
        row = [*row[: len(fields) - 1], ", ".join(row[len(fields) - 1 :])]
        if len(row) != len(fields) or not row[-1]:
            raise NvidiaSmiError(f"nvidia-smi's answer to {what} cannot be read: {shortened(line)!r}")
        rows.append(row)
    return rows


def _run_bounded(command: list[str], *, timeout_s: float) -> tuple[int, str, str]:
    """Exit code and output; own process group, because a killed script's child would keep the pipes open."""
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
        raise NvidiaSmiError(f"nvidia-smi cannot be started: {error.strerror or error}") from error
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # A process that waits for a dead driver cannot be killed; it is left behind rather than waited for.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_KILL_GRACE_S)
        raise NvidiaSmiError(f"nvidia-smi did not answer within {timeout_s:g} s and was killed") from error
    return process.returncode, output, errors


def number(cell: str, kind: type[Number]) -> Number | None:
    """The figure, or None where the card does not report it.

    Raises:
        NvidiaSmiError: it is anything else, which is no answer.
    """
    if cell.strip("[]").lower() in _NOT_AVAILABLE:
        return None
    try:
        return kind(cell)
    except ValueError as error:
        raise NvidiaSmiError(f"nvidia-smi gives {shortened(cell)!r} where a number is expected") from error


def shortened(text: str) -> str:
    """The beginning of what the tool said, for a message."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
