"""A PID namespace for one stage: the kernel ends every process in it when its first one (init) ends.

No list of process ids can guarantee that: a program may start its own session, fork twice, or close its files.
Linux only; see pid_namespaces(7), user_namespaces(7) and mount_namespaces(7).
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 0x2, 0x4, 0x8, 0x4000, 0x80000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# A shell's exit code for a program that cannot be started.
NOT_STARTED = 127


def namespace_is_allowed() -> bool:
    """Whether this process may make a PID namespace with its own /proc; a child tries it, and ends at once.

    A kernel, a container or a policy can forbid user namespaces, or the mount of a new /proc.
    """
    if sys.platform != "linux":
        return False
    child = os.fork()
    if child == 0:
        code = 1
        try:
            unshare_pids()
            init = os.fork()
            if init == 0:
                _mount_own_proc()
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
        except OSError:
            pass
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def unshare_pids() -> None:
    """Make the next child of this process the init of a new PID namespace.

    Root makes no user namespace, in which it would lose its rights over files of other users.

    Raises:
        OSError: neither way is allowed.
    """
    try:
        _call("unshare", _CLONE_NEWPID)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWPID)
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def run_as_init(command: Sequence[str], *, parent_lives: int) -> NoReturn:
    """Be init of the namespace: start the program, reap orphans, and exit with the program's exit code.

    Args:
        parent_lives: the reading end of a pipe that only the parent holds open for writing.
    """
    # An init gets no signal without a handler, except SIGKILL from outside.
    _call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if select.select([parent_lives], [], [], 0)[0]:
        os._exit(1)  # the parent died before prctl took effect
    _mount_own_proc()
    program = started(command)
    if program is None:
        os._exit(NOT_STARTED)
    while True:
        pid, status = os.wait()
        if pid == program.pid:
            os._exit(shell_code(status))


def started(command: Sequence[str]) -> "subprocess.Popen[bytes] | None":
    """Start the program in its own session, with no signal blocked; None and a log line if it cannot start.

    The caller has only one thread, so `preexec_fn` cannot wait for a lock of another thread.
    """
    try:
        return subprocess.Popen(command, start_new_session=True, preexec_fn=_unblock_signals)
    except OSError as error:
        print(f"[supervisor] {command[0]} cannot be started: {error}", flush=True)  # noqa: T201 - the stage's log
        return None


def adopt_orphans() -> None:
    """Let descendants whose parent ends become children of this process, not of the machine's init."""
    if sys.platform == "linux":
        _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shell_code(status: int) -> int:
    """A wait status as a shell shows it: 128 + n for a death by signal n."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _mount_own_proc() -> None:
    """Mount a /proc that shows only the namespace's processes, only there; later mounts of the host still appear."""
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
    _call("mount", b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _call(name: str, *arguments: int | bytes | None) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
