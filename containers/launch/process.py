"""Runs a stage as a process of this machine, for people who are inside a container or on a cluster already.

Same program, same variables, same checks. What only a container can enforce (size of /dev/shm, no network, read-only
inputs) is measured by the program and reported as `not enforced`.
"""

import contextlib
import logging
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psutil

import containers
from containers.contracts.hardware import UNLIMITED, RequiredContract
from containers.launch.arguments import process_arguments, process_environment
from containers.launch.folders import prepare_folders
from containers.launch.rank_deaths import killed_rank, rank_deaths
from containers.launch.runtime import (
    STAGE_LOG_FILE,
    STOP_GRACE_S,
    CreateRefusedError,
    InputUnusableError,
    Launch,
    StageExit,
)
from containers.launch.stage_log import StageLog
from containers.launch.supervise import ChunkReader, Watch, watch

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 16 * 1024
_LIMITS = {"stack": resource.RLIMIT_STACK, "memlock": resource.RLIMIT_MEMLOCK}


class ProcessRuntime:
    """A stage as a child process in a session of its own.

    Args:
        command: replaces the entry program; for tests of the runtime itself.
        stop_grace_s: between SIGTERM and SIGKILL.
    """

    def __init__(self, *, command: tuple[str, ...] | None = None, stop_grace_s: float = STOP_GRACE_S) -> None:
        self._command = command
        self._stop_grace_s = stop_grace_s

    @property
    def name(self) -> Literal["docker", "process"]:
        """The value of `StageSpec.runtime`."""
        return "process"

    def run(self, launch: Launch) -> StageExit:
        """The process's end; when this returns or raises, its whole process group is dead.

        Raises:
            InputUnusableError: an input is missing.
            CreateRefusedError: the process could not be started.
        """
        spec = launch.spec.model_copy(update={"work_path": str(launch.work_folder.resolve())})
        missing = [f"`{item.name}` ({item.path})" for item in spec.inputs if not Path(item.path).exists()]
        if missing:
            raise InputUnusableError(f"{spec.stage} cannot start: not there: {', '.join(missing)}.")
        launch.spec_folder.mkdir(parents=True, exist_ok=True)
        launch.work_folder.mkdir(parents=True, exist_ok=True)
        spec_file = prepare_folders(launch, spec)
        sources = Path(containers.__file__).resolve().parents[1]
        environment = process_environment(spec, parent=os.environ, sources=sources)
        if launch.gpu_ids:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(launch.gpu_ids)
        command = self._command or process_arguments(spec_file.resolve())
        with StageLog(launch.spec_folder / STAGE_LOG_FILE, launch.on_line) as log:
            return self._supervise(launch, command, environment, log=log)

    def _supervise(
        self, launch: Launch, command: tuple[str, ...], environment: dict[str, str], *, log: StageLog
    ) -> StageExit:
        kills_before = _kernel_oom_kills()
        program = _ProcessProgram(command, environment, launch)
        reader = ChunkReader(program.chunks)
        try:
            seen = watch(program, launch, log=log, reader=reader, stop_grace_s=self._stop_grace_s)
        finally:
            program.close()
        return _stage_exit(program, seen, log=log, kills_before=kills_before)


class _ProcessProgram:
    def __init__(self, command: tuple[str, ...], environment: dict[str, str], launch: Launch) -> None:
        try:
            with _raised_limits(launch.spec.required):
                self._process = subprocess.Popen(
                    command,
                    cwd=launch.work_folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise CreateRefusedError(f"{launch.spec.stage} cannot start: {command[0]}: {error}") from error
        self.usage: resource.struct_rusage | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def return_code(self) -> int | None:
        """As `Popen.returncode`: negative for a signal."""
        return self._process.returncode

    def chunks(self) -> Iterator[bytes]:
        assert self._process.stdout is not None  # noqa: S101 - Popen was given PIPE
        with self._process.stdout as stream:
            while chunk := os.read(stream.fileno(), _CHUNK_BYTES):
                yield chunk

    def ended(self) -> bool:
        if self._process.returncode is None:
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self.usage = usage
                # Workers that outlive their parent would hold the log open, and memory.
                self.kill()
        return self._process.returncode is not None

    def terminate(self) -> None:
        self._signal_group(signal.SIGTERM)

    def ask_for_stacks(self) -> None:
        self._signal_group(signal.SIGUSR1)

    def kill(self) -> None:
        self._signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Kill what is left of the group, and see it dead."""
        self.kill()
        deadline = time.monotonic() + 5
        while not (self.ended() and self._group_is_dead()) and time.monotonic() < deadline:
            time.sleep(0.02)
        if not self.ended():
            logger.error(
                "Process %d does not die from SIGKILL; look at it with `ps -o stat,wchan %d`.", self.pid, self.pid
            )

    def _group_is_dead(self) -> bool:
        """What is dead and waits to be reaped by its parent counts as dead."""
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return True
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.getpgid(process.pid) == self._process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    return False
        return True

    def _signal_group(self, number: signal.Signals) -> None:
        # The group's id is the session leader's pid, which stays reserved while any member lives.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@contextlib.contextmanager
def _raised_limits(required: RequiredContract) -> Iterator[None]:
    """Raise our own soft limits as far as allowed, so that the child inherits them, and put them back.

    Not `preexec_fn`: it runs Python between fork and exec, which can hang in a process with threads.
    """
    before = {which: resource.getrlimit(which) for which in _LIMITS.values()}
    wanted = {"stack": required.stack_bytes, "memlock": required.memlock_bytes}
    try:
        for name, which in _LIMITS.items():
            soft, hard = before[which]
            target = hard if wanted[name] == UNLIMITED else _smaller(wanted[name], hard)
            if _smaller(soft, target) == soft:
                resource.setrlimit(which, (target, hard))
        yield
    finally:
        for which, limits in before.items():
            resource.setrlimit(which, limits)


def _smaller(one: int, other: int) -> int:
    """The stricter of two limits, where `RLIM_INFINITY` is the largest."""
    if one == resource.RLIM_INFINITY:
        return other
    return one if other == resource.RLIM_INFINITY else min(one, other)


def _kernel_oom_kills() -> int:
    """How often the kernel has killed for memory since boot; 0 where it does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _stage_exit(program: _ProcessProgram, seen: Watch, *, log: StageLog, kills_before: int) -> StageExit:
    code = program.return_code
    number = -code if code is not None and code < 0 else None
    died_of_kill = number == signal.SIGKILL or killed_rank(rank_deaths(log.tail)) is not None
    killed = died_of_kill and not (seen.timed_out or seen.cancelled or seen.stalled)
    state = {"process": str(program.pid)}
    if program.usage:
        state["peak resident memory"] = f"{program.usage.ru_maxrss / 1024:,.0f} MiB"
        state["processor time"] = f"{program.usage.ru_utime + program.usage.ru_stime:.1f} s"
    if seen.unkillable:
        state["problem"] = "it did not die from SIGKILL"
    return StageExit(
        exit_code=code if number is None else 128 + number,
        # The kernel's counter is machine-wide; together with our own SIGKILL it is the best that can be known.
        oom_killed=killed and _kernel_oom_kills() > kills_before,
        timed_out=seen.timed_out,
        cancelled=seen.cancelled,
        signal=number,
        duration_s=seen.duration_s,
        log_tail=log.tail,
        container_id="",
        image_digest="",
        lost=seen.unkillable,
        stalled=seen.stalled,
        state=state,
    )
