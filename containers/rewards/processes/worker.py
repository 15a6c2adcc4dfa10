"""A process that computes one function for the stage, with limits: `python -m containers.rewards.processes.worker`.

It reads JSON lines: first what to compute, then one job a line; it writes one JSON line for each. The kernel ends the
process if a job takes more processor time than allowed: some (5^5^5^5^5) cannot be interrupted in any other way.
The limits are for mistakes. They do not make it safe to run code that means harm.
"""

import ctypes
import importlib
import importlib.util
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

# Of prctl(2) and unshare(2).
_DIE_WITH_PARENT, _NEW_USER, _NEW_NETWORK = 1, 0x10000000, 0x40000000
_LOADING_CPU_S = 60


def main() -> None:
    """Compute jobs until the stage closes the pipe."""
    # A stop is the stage's to answer: it finishes its step, for which it needs this process.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    setting = json.loads(sys.stdin.readline())
    _limit(setting)
    try:
        compute = _function(setting)
    except (Exception, SystemExit) as error:
        _tell(answers, {"refused": _named(error)})
        return
    _tell(answers, {"ready": True})
    for line in sys.stdin:
        _allow(setting["cpu_s"])
        try:
            _tell(answers, _answer(compute(json.loads(line))))
        except MemoryError:
            _tell(answers, {"reason": "it needs more memory than it may have"})
        except (Exception, SystemExit) as error:
            said = str(error) if getattr(error, "is_reason", False) else f"it raised {_named(error)}"
            _tell(answers, {"reason": said})


def _limit(setting: dict[str, Any]) -> None:
    # What the function prints would come among the answers, or into a log that it may not write.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    if setting["maker"] is None:
        os.dup2(nowhere, 2)
        # Not allowed everywhere; the container of a stage has no network anyway.
        ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER | _NEW_NETWORK)
    resource.setrlimit(resource.RLIMIT_AS, (setting["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # Libraries look for a folder for temporary files when they are imported, by writing into it.
    tempfile.tempdir = "/tmp"  # noqa: S108
    _allow(_LOADING_CPU_S)


def _allow(cpu_s: int) -> None:
    """Allow so many more seconds of processor time; the kernel counts whole seconds."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + cpu_s), most))


def _function(setting: dict[str, Any]) -> Callable[[Any], Any]:
    settings = setting["settings"]
    if setting["maker"] is not None:
        module, _, name = setting["maker"].partition(":")
        maker: Callable[[Any], Callable[[Any], Any]] = getattr(importlib.import_module(module), name)
        return maker(settings)
    scope: dict[str, Any] = {"__name__": "reward"}
    exec(compile(settings["code"], settings["file"], "exec"), scope)  # noqa: S102 - the user's own reward
    own = scope.get(settings["function"])
    if not callable(own):
        raise NameError(f"{settings['file']} has no function {settings['function']}")
    return lambda job: own(**job)


def _answer(value: Any) -> dict[str, Any]:
    """Return a value, or why it is none."""
    if value is None:
        return {"reason": "it cannot tell"}
    if isinstance(value, bool | int | float):
        number = float(value)
        return {"value": number} if math.isfinite(number) else {"reason": f"it returned {number}"}
    return {"reason": f"it returned {type(value).__name__}, not a number"}


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")


def _tell(stream: Any, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
