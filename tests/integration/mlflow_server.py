"""An MLflow server on its own SQLite file and a fixed port, so that it can be killed and come back."""

import subprocess
import time
from pathlib import Path

from flows.servers.commands import server_plan
from flows.servers.process import free_ports, health_problem, log_tail, start_process, stop_groups


class MlflowServer:
    """A server on its own SQLite file and a fixed port, so that it can be killed and come back."""

    def __init__(self, state_dir: Path) -> None:
        (self.port,) = free_ports(1)
        self.uri = f"http://127.0.0.1:{self.port}"
        self._plan = server_plan("mlflow", state_dir, self.port)
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._child = start_process(self._plan)
        deadline = time.monotonic() + 120
        while (problem := health_problem(f"{self.uri}/health")) is not None:
            assert self._child.poll() is None, f"MLflow ended:\n{log_tail(self._plan.log_path)}"
            assert time.monotonic() < deadline, f"{problem}\n{log_tail(self._plan.log_path)}"
            time.sleep(0.1)

    def stop(self) -> None:
        if self._child is not None:
            stop_groups([self._child.pid], children={self._child.pid: self._child})
            self._child = None
