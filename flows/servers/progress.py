"""Whether a server that does not answer yet is at work: a loaded machine makes it slow, and that is no fault."""

import time
from contextlib import suppress
from pathlib import Path

import psutil

_LOOK_EVERY_S = 1.0
# A process that only sleeps, and wakes to look at a timer, uses less.
_LEAST_PROCESSOR_S = 0.1


class ServerProgress:
    """Watches the log of a server and the processor time of its processes.

    Args:
        pid: the process that was started; its children count too.
        log_path: where all of them write.
    """

    def __init__(self, pid: int, log_path: Path) -> None:
        self._pid = pid
        self._log_path = log_path
        self._looked_at = self._moved_at = time.monotonic()
        self._log_bytes, self._processor_s = _size(log_path), _processor_s(pid)

    @property
    def idle_s(self) -> float:
        """Seconds since it was last seen at work."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._look(now)
        return now - self._moved_at

    def _look(self, now: float) -> None:
        log_bytes, processor_s = _size(self._log_path), _processor_s(self._pid)
        # Less than before: a child has ended whose time nobody took over.
        if log_bytes != self._log_bytes or abs(processor_s - self._processor_s) >= _LEAST_PROCESSOR_S:
            self._log_bytes, self._processor_s, self._moved_at = log_bytes, processor_s, now


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _processor_s(pid: int) -> float:
    """Processor time of a process and its children, also of those that have ended."""
    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                total += sum(each.cpu_times()[:4])
    return total
