"""Watch a program until it ends: log, ticks, time-out, cancellation. The same loop for every runtime."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from containers.contracts.names import EVENTS_FILE
from containers.contracts.stop_grace import StopGrace, stop_grace
from containers.launch.base import LaunchRequest, StageExit
from containers.launch.stage_log import StageLog

logger = logging.getLogger(__name__)

POLL_S = 0.2
TICK_S = 1.0
# After SIGKILL a process is gone at once, unless the kernel holds it (a dead disk, a hung driver).
UNKILLABLE_AFTER_S = 30.0
DRAIN_S = 5.0
# Time for a program to write its stacks into the log, and more for each rank: ranks write one after the other.
STACKS_S = 2.0
STACKS_PER_RANK_S = 0.5


class Program(Protocol):
    """A started program, container or process."""

    def ended(self) -> bool:
        """Whether it ended or is lost; cheap, called several times a second."""

    def terminate(self) -> None:
        """Tell it to save its state and stop (SIGTERM)."""

    def ask_for_stacks(self) -> None:
        """Make it write the stack of each of its threads into its log (SIGUSR1)."""

    def kill(self) -> None:
        """Stop it (SIGKILL)."""


class ChunkReader:
    """Reads an iterator of bytes in its own thread, so that waiting for output never delays a time-out.

    The queue is bounded: a program that floods its log is slowed down, and the orchestrator's memory does not fill.
    """

    def __init__(self, chunks: Callable[[], Iterator[bytes]]) -> None:
        self._queue: queue.Queue[bytes] = queue.Queue(maxsize=256)
        self._chunks = chunks
        self._abandoned = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pull, name="stage-log", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> bytes:
        """The next chunk; empty if none came in time, and empty at once when no more can come."""
        try:
            return self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return b""

    @property
    def at_end(self) -> bool:
        """Whether every chunk was taken and no more can come."""
        return self._ended.is_set() and self._queue.empty()

    def abandon(self) -> None:
        """Stop reading; the thread ends when its iterator yields or ends."""
        self._abandoned.set()

    def _pull(self) -> None:
        try:
            for chunk in self._chunks():
                self._put(chunk)
                if self._abandoned.is_set():
                    return
        except Exception:
            logger.exception("The stage's log can no longer be read; the stage itself continues.")
        finally:
            self._ended.set()
            self._put(b"")  # else a waiting `take` would wait for its whole time-out

    def _put(self, chunk: bytes) -> None:
        while not self._abandoned.is_set():
            try:
                self._queue.put(chunk, timeout=POLL_S)
                return
            except queue.Full:
                continue


def grace_of(launch: LaunchRequest, stop_grace_s: float | None) -> Callable[[], StopGrace]:
    """Return a function that gives the stage's stop grace at the moment of the call; `stop_grace_s` if given."""
    if stop_grace_s is not None:
        return lambda: StopGrace(stop_grace_s)
    return lambda: stop_grace(launch.work_folder / EVENTS_FILE)


def watch(
    program: Program,
    launch: LaunchRequest,
    *,
    log: StageLog,
    reader: ChunkReader,
    grace: Callable[[], StopGrace],
    age_s: float = 0.0,
) -> StageExit:
    """Follow the program until it ends; stop it at the time-out or when `launch.should_stop` returns True.

    A program without a sign of life for `silence_limit_s` of its spec hangs: it writes its stacks, and is killed.

    An exception (KeyboardInterrupt, an error of a callback) first stops the program, and is then raised again.

    Args:
        grace: time between SIGTERM and SIGKILL; called when the program is stopped.
        age_s: how long the program had run before; counts for time-out and duration.

    Returns:
        The exit without what only the runtime knows: its code and state. It is `lost` where SIGKILL did not end it.
    """
    started = time.monotonic() - age_s
    try:
        seen = _follow(program, launch, log=log, reader=reader, grace=grace, started=started)
        _drain(log, reader)
        launch.on_tick()
    except BaseException:
        _stop(program, reader=reader, grace=grace())
        raise
    finally:
        reader.abandon()
    return replace(seen, duration_s=time.monotonic() - started, log_tail=log.tail)


class _Silence:
    """Time since a program's last sign of life, which is a new line in its log or in its events."""

    def __init__(self, launch: LaunchRequest) -> None:
        self._limit_s = launch.spec.silence_limit_s
        self._events = launch.work_folder / EVENTS_FILE
        self._size_bytes = self._events_size()
        self._last_sign = time.monotonic()

    def is_too_long(self, now: float, *, said_something: bool) -> bool:
        """Note the time where there is a sign of life. Return whether the silence has reached the limit."""
        size_bytes = self._events_size()
        if said_something or size_bytes != self._size_bytes:
            self._size_bytes, self._last_sign = size_bytes, now
        return self._limit_s is not None and now - self._last_sign >= self._limit_s

    def _events_size(self) -> int:
        try:
            return self._events.lstat().st_size
        except OSError:
            return 0


def _follow(
    program: Program,
    launch: LaunchRequest,
    *,
    log: StageLog,
    reader: ChunkReader,
    grace: Callable[[], StopGrace],
    started: float,
) -> StageExit:
    next_tick = time.monotonic()
    silence = _Silence(launch)
    deadline = started + launch.spec.timeout_s if launch.spec.timeout_s else float("inf")
    timed_out = cancelled = stalled = killed = is_unkillable = False
    kill_at = float("inf")
    while not is_unkillable and not program.ended():
        chunk = reader.take(POLL_S)
        log.feed(chunk)
        if reader.at_end:
            time.sleep(POLL_S / 4)
        now = time.monotonic()
        if now >= next_tick:
            next_tick = now + TICK_S
            launch.on_tick()
        is_silent = silence.is_too_long(now, said_something=bool(chunk))
        if not (timed_out or cancelled or stalled):
            timed_out = now >= deadline
            cancelled = not timed_out and launch.should_stop()
            stalled = not (timed_out or cancelled) and is_silent
            if timed_out or cancelled:
                why = f"the time-out of {launch.spec.timeout_s:g} s is over" if timed_out else "it was cancelled"
                given = grace()
                log.note(f"Stopping {launch.spec.stage}: {why}. Time to save its state: {given}.")
                program.terminate()
                kill_at = now + given.seconds
            elif stalled:
                log.note(f"{launch.spec.stage} gave no sign of life for {launch.spec.silence_limit_s:g} s. Its stacks:")
                program.ask_for_stacks()
                kill_at = now + STACKS_S + STACKS_PER_RANK_S * launch.spec.batch.num_processes
        elif not killed and now >= kill_at:
            if not stalled:
                log.note(f"{launch.spec.stage} did not stop in time and is killed.")
            program.kill()
            killed = True
        elif killed:
            is_unkillable = now >= kill_at + UNKILLABLE_AFTER_S
    return StageExit(exit_code=None, timed_out=timed_out, cancelled=cancelled, stalled=stalled, lost=is_unkillable)


def _drain(log: StageLog, reader: ChunkReader) -> None:
    """Read what was written before the end, for a bounded time: a grandchild may hold the pipe open."""
    deadline = time.monotonic() + DRAIN_S
    while not reader.at_end and time.monotonic() < deadline:
        log.feed(reader.take(POLL_S / 4))
    log.finish()


def _stop(program: Program, *, reader: ChunkReader, grace: StopGrace) -> None:
    """SIGTERM, grace, SIGKILL, before the original exception is raised again. A second interrupt ends the grace."""
    try:
        if program.ended():
            return
        program.terminate()
        kill_at = time.monotonic() + grace.seconds
        while not program.ended() and time.monotonic() < kill_at:
            reader.take(POLL_S)
    finally:
        if not program.ended():
            program.kill()
