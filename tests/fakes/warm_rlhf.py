"""`rlhf` in a process of its own, forked from one that has imported the commands: their imports take a second each.

A command has its own working folder, environment, standard output and exit code, and ends as it always does.
"""

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import NoReturn

_PROJECT = Path(__file__).resolve().parents[2]
_LIMIT_S = 60


class WarmRlhf:
    """Runs commands one after the other; the process with the imports starts with the first."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> "WarmRlhf":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server:
            self._server.communicate()

    def __call__(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; it is ended by SIGALRM after a minute."""
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, __file__], cwd=_PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self._server.stdin and self._server.stdout
        with tempfile.TemporaryDirectory() as folder:
            request = {"arguments": arguments, "cwd": str(cwd), "environment": dict(os.environ), "folder": folder}
            print(json.dumps(request), file=self._server.stdin, flush=True)
            code = int(self._server.stdout.readline())
            out, err = ((Path(folder) / name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(["rlhf", *arguments], code, out, err)


def _serve() -> None:
    """Fork once per line of standard input, and answer with the exit code, negative for a signal."""
    sys.path[0] = str(_PROJECT)
    from pkgutil import resolve_name

    from flows.cli.registry import COMMANDS

    for command in COMMANDS.values():
        resolve_name(f"flows.cli.{command.place}")
    gc.freeze()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


def _run(*, arguments: list[str], cwd: str, environment: dict[str, str], folder: str) -> NoReturn:
    from flows.cli.main import main

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    written = os.O_WRONLY | os.O_CREAT
    places = ((os.devnull, os.O_RDONLY), (f"{folder}/stdout", written), (f"{folder}/stderr", written))
    for number, (path, how) in enumerate(places):
        os.dup2(os.open(path, how), number)
    sys.argv = ["rlhf", *arguments]
    signal.alarm(_LIMIT_S)
    code = main()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a usual end would take every imported module down, which takes longer than most commands


if __name__ == "__main__":
    _serve()
