"""A small pool of processes that compute a reward; each can be killed, and is then started again."""

import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from containers.contracts.programs import PACKAGE
from containers.harness.errors import BadConfigError, StageError
from containers.rewards.base import NoValue, Value
from containers.rewards.processes import worker

# A job that uses no processor time, such as one that sleeps, is given up after this.
WALL_S = 60.0
_MEMORY_BYTES = 2 * 2**30
_START_S = 120.0
_MOST_WORKERS = 8
# Of the stage's variables, a worker gets these alone.
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, name: str, setting: dict[str, Any]) -> None:
        self._name = name
        self._setting = setting
        self.job: int | None = None
        self.until_s = 0.0
        self._start()

    def _start(self) -> None:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-m", worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**kept, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            process_group=0,
        )
        with suppress(BrokenPipeError):  # its end is seen where its answer is read
            self._send(self._setting)

    def require_ready(self) -> None:
        """Wait until it has loaded its function.

        Raises:
            BadConfigError: the function cannot be loaded; says why.
        """
        if not select.select([self.stdout], [], [], _START_S)[0]:
            self.close()
            raise BadConfigError(f"train_policy.rewards, `{self._name}` takes more than {_START_S:g} s to load.")
        line = self.stdout.readline()
        told = json.loads(line) if line.endswith(b"\n") else {"refused": self._ending(self._process.wait())}
        if "refused" in told:
            raise BadConfigError(f"train_policy.rewards, `{self._name}` cannot be used: {told['refused']}.")

    @property
    def stdout(self) -> Any:
        """The pipe with its answers."""
        return self._process.stdout

    def give(self, number: int, job: Any) -> None:
        """Start on a job."""
        self.job, self.until_s = number, time.monotonic() + WALL_S
        with suppress(BrokenPipeError):
            self._send(job)

    def answer(self) -> Value:
        """Return the answer that has arrived; start the process again if it died."""
        line = self.stdout.readline()
        if line.endswith(b"\n"):
            told = json.loads(line)
            return float(told["value"]) if "value" in told else NoValue(str(told["reason"]))
        return NoValue(self._start_again())

    def give_up(self) -> Value:
        """Kill the process, and start another one."""
        self._kill()
        self._start_again()
        return NoValue(f"it took more than {WALL_S:g} s")

    def _start_again(self) -> str:
        """Start another process in place of one that ended, and return how that one ended."""
        ending = self._ending(self._process.wait())
        self.close()
        self._start()
        self.require_ready()
        return ending

    def _ending(self, code: int) -> str:
        if code == -signal.SIGXCPU:
            return f"it took more than {self._setting['cpu_s']} s of processor time"
        return f"its process ended with {signal.Signals(-code).name if code < 0 else code}"

    def close(self) -> None:
        """End the process, and what it started."""
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _send(self, value: Any) -> None:
        pipe = self._process.stdin
        if pipe is None:
            raise StageError("A reward's process has no pipe.")
        pipe.write(json.dumps(value, default=str).encode() + b"\n")
        pipe.flush()


class Workers:
    """Processes that compute one function, several jobs at a time.

    Args:
        name: of the term, for messages.
        maker: a function at the top of a module, which turns the settings into the check of one job; None: the settings
            are code of the user's own (`code`), its `file`, and the name of its `function`.
        settings: JSON values.
        cpu_s: processor time for one job, s.
        count: number of processes; None: half of the cores, 2 to 8.

    Raises:
        BadConfigError: the function cannot be loaded.
    """

    def __init__(
        self,
        name: str,
        maker: Callable[[Any], Callable[[Any], Any]] | None,
        settings: Any,
        *,
        cpu_s: int,
        count: int | None = None,
    ) -> None:
        if count is None:
            count = min(max(len(os.sched_getaffinity(0)) // 2, 2), _MOST_WORKERS)
        setting = {
            "memory_bytes": _MEMORY_BYTES,
            "cpu_s": cpu_s,
            "settings": settings,
            "maker": None if maker is None else f"{maker.__module__}:{maker.__name__}",
        }
        self._workers = [_Worker(name, setting) for _ in range(count)]
        try:
            for one in self._workers:
                one.require_ready()
        except BadConfigError:
            self.close()
            raise

    def values(self, jobs: Sequence[Any]) -> list[Value]:
        """Return the value of each job in order, or why it has none."""
        found: dict[int, Value] = {}
        waiting = deque(enumerate(jobs))
        with selectors.DefaultSelector() as selector:
            for one in self._workers:
                _give_next(one, waiting, selector)
            while len(found) < len(jobs):
                busy: list[_Worker] = [key.data for key in selector.get_map().values()]
                seconds = min(one.until_s for one in busy) - time.monotonic()
                ready = [key.data for key, _ in selector.select(max(0.0, seconds))]
                late = [one for one in busy if one not in ready and one.until_s <= time.monotonic()]
                for one in (*ready, *late):
                    selector.unregister(one.stdout)
                    found[one.job] = one.answer() if one in ready else one.give_up()
                    _give_next(one, waiting, selector)
        return [found[number] for number in range(len(jobs))]

    def close(self) -> None:
        """End all processes."""
        for one in self._workers:
            one.close()


def _give_next(one: _Worker, waiting: "deque[tuple[int, Any]]", selector: selectors.BaseSelector) -> None:
    if waiting:
        one.give(*waiting.popleft())
        selector.register(one.stdout, selectors.EVENT_READ, one)
