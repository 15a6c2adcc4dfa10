"""What programs of a test make and do; they import it by its name, so it is no part of a test module."""

import os
import signal
from typing import Any


def made(start: int, device: Any) -> tuple[int, int]:
    if start < 0:
        raise ValueError("a negative start")
    return start, os.getpid()


def added(known: tuple[int, int], items: list[int]) -> list[tuple[int, int]]:
    if 13 in items:
        raise ValueError("unlucky")
    if 99 in items:
        os.kill(os.getpid(), signal.SIGKILL)
    return [(known[0] + item, known[1]) for item in items]
