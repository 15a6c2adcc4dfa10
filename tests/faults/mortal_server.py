"""A real Prefect or MLflow server that a test kills and starts again on the same port and database."""

import os
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal
from uuid import UUID

from mlflow import MlflowClient
from mlflow.entities import Run
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, TaskRun

from flows.servers.commands import HEALTH_PATHS, server_plan
from flows.servers.process import free_ports, health_problem, log_tail, start_process, stop_groups


class MortalServer:
    """One server with its state in a folder; started by `start`, which may be called again after `kill`."""

    def __init__(self, name: Literal["prefect", "mlflow"], state_dir: Path) -> None:
        (self.port,) = free_ports(1)
        self.database = state_dir / name / f"{name}.db"
        self.uri = f"http://127.0.0.1:{self.port}"
        self._plan = server_plan(name, state_dir, self.port)
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it where it does not run, and wait until it is healthy."""
        if self._child is not None:
            return
        self._child = start_process(self._plan)
        deadline = time.monotonic() + 180
        while (problem := health_problem(f"{self.uri}{HEALTH_PATHS[self._plan.name]}")) is not None:
            assert self._child.poll() is None, f"{self._plan.name} ended:\n{log_tail(self._plan.log_path)}"
            assert time.monotonic() < deadline, f"{problem}\n{log_tail(self._plan.log_path)}"
            time.sleep(0.1)

    def kill(self) -> None:
        """`kill -9` of the server and its helpers."""
        assert self._child is not None
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(timeout=30)
        self._child = None

    def stop(self) -> None:
        """End it in good order."""
        if self._child is not None:
            stop_groups([self._child.pid], children={self._child.pid: self._child})
            self._child = None


@dataclass(frozen=True)
class Shown:
    """A run as Prefect's pages show it: its state, and task → states of that task's runs."""

    run: FlowRun
    tasks: dict[str, list[str]]

    @property
    def state(self) -> str:
        return self.run.state_name or ""


class Prefect(MortalServer):
    """A Prefect server, and what it shows."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__("prefect", state_dir)
        self._open = ExitStack()

    @property
    def api_url(self) -> str:
        return f"{self.uri}/api"

    @cached_property
    def client(self) -> SyncPrefectClient:
        """Kept open until the server is stopped."""
        return self._open.enter_context(SyncPrefectClient(self.api_url))

    def stop(self) -> None:
        self._open.close()
        self.__dict__.pop("client", None)
        super().stop()

    def shown(self, name: str) -> list[Shown]:
        """The runs with that `run.name`, which is a tag of theirs; oldest first."""
        only = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"run:{name}"]))
        runs = self.client.read_flow_runs(flow_run_filter=only)
        return [Shown(run, _task_states(self.client, run.id)) for run in sorted(runs, key=lambda run: str(run.created))]


def _task_states(client: SyncPrefectClient, flow_run_id: UUID) -> dict[str, list[str]]:
    states: dict[str, list[str]] = {}
    only = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    task_runs: list[TaskRun] = client.read_task_runs(flow_run_filter=only)
    for task_run in task_runs:
        states.setdefault(task_run.name, []).append(task_run.state_name or "")
    return states


class Mlflow(MortalServer):
    """An MLflow server, and what it holds."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__("mlflow", state_dir)

    def runs(self, experiment: str) -> list[tuple[str, str, str]]:
        """Name, id and status of the experiment's runs, oldest first."""
        return [(run.info.run_name, run.info.run_id, run.info.status) for run in self._runs(experiment)]

    def durations_s(self, experiment: str) -> list[tuple[str, str, float]]:
        """Name, id and duration of the experiment's runs, as their pages show it."""
        found = [(run.info, run.info.end_time - run.info.start_time) for run in self._runs(experiment)]
        return [(info.run_name, info.run_id, duration_ms / 1000) for info, duration_ms in found]

    def _runs(self, experiment: str) -> list[Run]:
        client = MlflowClient(self.uri)
        found = client.get_experiment_by_name(experiment)
        runs = client.search_runs([found.experiment_id]) if found else []
        return sorted(runs, key=lambda run: run.info.start_time)

    def num_points(self, run_id: str) -> dict[tuple[str, int], int]:
        """Key and step → how many points the run holds there; figures that are no curves left out."""
        client = MlflowClient(self.uri)
        counts: dict[tuple[str, int], int] = {}
        for key in client.get_run(run_id).data.metrics:
            for item in () if key.startswith("final/") else client.get_metric_history(run_id, key):
                counts[key, item.step] = counts.get((key, item.step), 0) + 1
        return counts


def own_experiment(mlflow_uri: str, name: str) -> tuple[str, str]:
    """Settings of a run that writes into an experiment of its own on that server."""
    return f"tracking.mlflow_uri={mlflow_uri}", f"tracking.experiment={name}"
