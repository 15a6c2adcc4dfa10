"""A place in which runs wait for people: a Prefect server, a store with a judged reward model, and who is notified."""

import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from faults.mortal_server import Prefect
from faults.tiny_project import TINY
from mlflow import MlflowClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import SetStateStatus
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL, temporary_settings
from short_runs import end

from containers.contracts.records import PipelineRecord
from flows.demo.rows import write_demo_data
from tasks.pipeline.standing_report import last_record

# A machine that trains elsewhere meanwhile takes minutes for what else takes seconds.
LIMIT_S = 400.0
UNTIL_JUDGED = ("run.until=evaluate_reward_model", "gates.reward_model.waive=null")


class Place:
    """A project folder with a Prefect server and a store in which the reward model is trained and judged."""

    def __init__(self, folder: Path, prefect: Prefect) -> None:
        self.folder = folder
        self.prefect = prefect
        self.client = prefect.client
        self.mlflow_uri = f"sqlite:///{folder / 'mlflow.db'}"
        self.environment = os.environ | {
            "PREFECT_API_URL": prefect.api_url,
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "MLFLOW_TRACKING_URI": self.mlflow_uri,
            "DOCKER_HOST": "unix:///nonexistent.sock",
            "COLUMNS": "400",
        }

    def rlhf(self, command: str, name: str, *options: str, rules: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        """The command, run to its end in a terminal."""
        sets = [word for rule in (*rules, *UNTIL_JUDGED, f"run.name={name}") for word in ("--set", rule)]
        ended = subprocess.run(
            [sys.executable, "-m", "flows.cli.main", command, "-c", "configs/runs/tiny.yaml", *sets, *options],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert "Traceback" not in ended.stdout + ended.stderr
        return ended

    def record(self, name: str) -> PipelineRecord:
        """What the newest report of that run is written from."""
        record = last_record(self.folder / "outputs" / name)
        assert record is not None
        return record

    def page(self, name: str) -> str:
        """The newest report of that run, for people."""
        return (self.folder / "outputs" / name / "report.html").read_text(encoding="utf-8")

    def mlflow_tags(self, name: str) -> list[tuple[str, dict[str, str]]]:
        """Status and tags of the parent runs of that name, oldest first."""
        client = MlflowClient(self.mlflow_uri)
        experiment = client.get_experiment_by_name("rlhf-flows")
        found = client.search_runs([experiment.experiment_id], f"params.`run.name` = '{name}'") if experiment else []
        ordered = sorted(found, key=lambda run: run.info.start_time)
        return [(run.info.status, dict(run.data.tags)) for run in ordered]

    @contextmanager
    def served(self) -> Iterator[None]:
        """The pipeline served as a deployment, whose runs can be suspended."""
        program = Path(__file__).with_name("serving") / "approval_flow.py"
        log = self.folder / "serve.log"
        with log.open("wb") as stream:
            serving = subprocess.Popen(
                [sys.executable, str(program)], cwd=self.folder, env=self.environment, stdout=stream, stderr=stream
            )
        try:
            wait_for(lambda: "being served" in log.read_text(), timeout_s=LIMIT_S)
            yield
        finally:
            serving.terminate()
            try:
                serving.wait(timeout=30)
            except subprocess.TimeoutExpired:
                end(serving)  # type: ignore[arg-type]

    def start(self, name: str, *rules: str, until: tuple[str, ...] | None = UNTIL_JUDGED) -> UUID:
        """Start the served deployment."""
        parameters = {"run_name": name, "overrides": [*rules, *(until or ())]}
        return run_deployment("rlhf/approval", parameters=parameters, timeout=0).id

    def flow_run(self, flow_run_id: UUID) -> FlowRun:
        return self.client.read_flow_run(flow_run_id)

    def wait_for_state(self, flow_run_id: UUID, *names: str, timeout_s: float = LIMIT_S) -> FlowRun:
        """The run in one of these states; fails in any other state that is final."""

        def reached() -> FlowRun | None:
            run = self.flow_run(flow_run_id)
            if run.state_name in names:
                return run
            assert run.state is not None and not run.state.is_final(), f"{run.state_name}: {run.state.message}"
            return None

        return wait_for(reached, timeout_s=timeout_s)

    def press(self, flow_run_id: UUID, state: State[Any]) -> None:
        """What the page does on Cancel (`Cancelling`) and Retry (`AwaitingRetry`)."""
        result = self.client.set_flow_run_state(flow_run_id, state)
        taken = result.status is SetStateStatus.ACCEPT or (result.state is not None and result.state.is_cancelled())
        assert taken, result.details

    def answer(self, flow_run_id: UUID, **answer: str) -> str:
        """Submit the form; why it was refused, empty where it was taken."""
        result = self.client.resume_flow_run(flow_run_id, run_input=answer)
        return "" if result.status.value == "ACCEPT" else str(getattr(result.details, "reason", "no reason given"))


@contextmanager
def opened_place(folder: Path, project: Path) -> Iterator[Place]:
    """A place in that folder with a running Prefect server, to which this process is set too."""
    (folder / "configs/runs").mkdir(parents=True)
    (folder / "configs/gpu_profiles").symlink_to(project / "configs/gpu_profiles")
    (folder / "configs/runs/tiny.yaml").write_text(yaml.safe_dump(TINY))
    write_demo_data(folder / "data")
    prefect = Prefect(folder / "prefect")
    try:
        prefect.start()
        with temporary_settings({PREFECT_API_URL: prefect.api_url}):
            yield Place(folder, prefect)
    finally:
        prefect.stop()


def wait_for(value: Callable[[], Any], *, timeout_s: float) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := value()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.3)
    return found


class Receiver:
    """A web server that keeps what it is sent, and answers with `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.received: list[str] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                receiver.received.append(self.rfile.read(length).decode())
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/secret-path"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
