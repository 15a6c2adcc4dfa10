"""A tiny project whose pipeline is served by `rlhf serve` on real servers, and what Prefect shows of its runs."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
from faults.tiny_project import recorded_steps
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

from containers.contracts.names import StageName
from flows.servers.local import Servers

# No daemon and no hub answers, whatever this machine has; torch takes one thread.
_ENVIRONMENT = {
    "DOCKER_HOST": "unix:///nonexistent.sock",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "COLUMNS": "400",
    "PYTHONUNBUFFERED": "1",
}
STAGE_PROGRAM = "containers.stages.entry"
_ENDED = ("Completed", "Failed", "Crashed", "Cancelled")


@dataclass
class ServedProject:
    """A project folder, the servers behind it, and `rlhf serve` in it."""

    folder: Path
    servers: Servers
    process: subprocess.Popen[bytes] | None = None
    output: Path = field(init=False)
    client: SyncPrefectClient = field(init=False)
    login: str = field(init=False)

    def __post_init__(self) -> None:
        self.output = self.folder / "serve.log"
        # In the environment while the servers are up: that of this folder, made by itself.
        self.login = os.environ["PREFECT_API_AUTH_STRING"]
        self.client = SyncPrefectClient(self.servers.prefect_api_url, auth_string=self.login).__enter__()

    @property
    def environment(self) -> dict[str, str]:
        """What every command gets."""
        return os.environ | _ENVIRONMENT

    @property
    def settings(self) -> dict[Any, Any]:
        """By which Prefect's own clients in this process find the server and are let in."""
        return {PREFECT_API_URL: self.servers.prefect_api_url, PREFECT_API_AUTH_STRING: self.login}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "flows.cli.main", *words]

    def serve(self, *options: str) -> None:
        """Start `rlhf serve` and wait until it says what to click."""
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(
                self.command("serve", *options),
                cwd=self.folder,
                env=self.environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.wait_for(lambda: "Ctrl-C ends this" in self.said, what="the serving", timeout_s=180)

    @property
    def said(self) -> str:
        """What `rlhf serve` has printed."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def end(self, number: int = signal.SIGTERM) -> int:
        """End the serving with a signal; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=150)

    def kill_what_is_left(self) -> None:
        """After the last test."""
        self.client.__exit__(None, None, None)
        if self.process is not None and self.process.poll() is None:
            self.end()
        for process in self.processes(""):
            with contextlib.suppress(psutil.Error):
                process.kill()

    def wait_for(self, value: Callable[[], Any], *, what: str, timeout_s: float = 240) -> Any:
        """The first true value."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := value():
                return found
            assert self.process is None or self.process.poll() is None, self.said
            time.sleep(0.2)
        raise AssertionError(f"{what} did not come within {timeout_s} s:\n{self.said[-3000:]}")

    def send_form(self, deployment: str, **values: Any) -> httpx.Response:
        """What the page does on Submit."""
        found = self.client.read_deployment_by_name(f"{deployment}/{deployment}")
        body = {"parameters": values, "state": {"type": "SCHEDULED"}, "enforce_parameter_schema": True}
        return self.post(f"/deployments/{found.id}/create_flow_run", body)

    def post(self, path: str, body: object) -> httpx.Response:
        """The server's answer to a page, whatever it is."""
        try:
            return self.client.request("POST", path, json=body)  # type: ignore[arg-type]
        except httpx.HTTPStatusError as error:
            return error.response

    def start(self, deployment: str, **values: Any) -> UUID:
        """A run that the server took."""
        response = self.send_form(deployment, **values)
        assert response.status_code == 201, response.text
        return UUID(response.json()["id"])

    def press(self, state: str, run: UUID) -> None:
        """What the page does on Cancel (`Cancelling`) and Retry (`AwaitingRetry`)."""
        kind = {"Cancelling": "CANCELLING", "AwaitingRetry": "SCHEDULED"}[state]
        answer = self.post(f"/flow_runs/{run}/set_state", {"state": {"type": kind, "name": state}})
        assert answer.json()["status"] == "ACCEPT", answer.text

    def run(self, run: UUID) -> FlowRun:
        return self.client.read_flow_run(run)

    def state(self, run: UUID) -> str:
        return self.run(run).state_name or ""

    def message(self, run: UUID) -> str:
        state = self.run(run).state
        return (state.message if state else "") or ""

    def ended(self, run: UUID, *, timeout_s: float = 300) -> str:
        """The name of the run's last state."""
        self.wait_for(lambda: self.state(run) in _ENDED, what=f"the end of {run}", timeout_s=timeout_s)
        return self.state(run)

    def stages(self, run: UUID) -> list[tuple[str, str]]:
        """Name and state of every task run, in order; those of a retry come after those before it."""
        only = FlowRunFilter(id=FlowRunFilterId(any_=[run]))
        found = self.client.read_task_runs(flow_run_filter=only)
        ordered = sorted(found, key=lambda item: str(item.expected_start_time))
        return [(item.name, item.state_name or "") for item in ordered]

    def wait_for_last_stage(self, run: UUID, stage: StageName, state: str, *, timeout_s: float = 60) -> None:
        """Until the last task of the run is that stage's, in that state."""
        deadline = time.monotonic() + timeout_s
        while (shown := self.stages(run))[-1] != (stage.value, state):
            assert time.monotonic() < deadline, f"after {timeout_s} s Prefect shows {shown}:\n{self.said[-3000:]}"
            time.sleep(0.2)

    def logs(self, run: UUID) -> list[str]:
        wanted = {"logs": {"flow_run_id": {"any_": [str(run)]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        answer = self.post("/logs/filter", wanted)
        return [line["message"] for line in answer.json()]

    def steps(self, run_name: str, stage: StageName) -> list[int]:
        """The training steps that were recorded, in order."""
        works = (self.folder / "outputs" / f"{run_name}-store").glob(f"work/{stage}/*")
        return [step for work in works for step in recorded_steps(work)]

    def lend(self, run_name: str, *stages: StageName) -> None:
        """Give a store of a run's own what these stages made for the runs before it, where there were any."""
        for stage in stages:
            made = self.folder / "outputs/store/artifacts" / stage
            if made.is_dir():
                shutil.copytree(made, self.folder / f"outputs/{run_name}-store/artifacts" / stage)

    def wait_for_step(self, run_name: str, stage: StageName, *, step: int, timeout_s: float = 240) -> None:
        """Until the stage has trained so far."""
        self.wait_for(lambda: step in self.steps(run_name, stage), what=f"step {step} of {stage}", timeout_s=timeout_s)

    @contextlib.contextmanager
    def held(self, stage: StageName, *, run: UUID, timeout_s: float = 240) -> Iterator[psutil.Process]:
        """Wait for the process of a run's stage and stop it (SIGSTOP) for as long as this is open."""

        def found() -> psutil.Process | None:
            programs = self.processes(STAGE_PROGRAM)
            process = next((process for process in programs if f"/{stage}/" in " ".join(process.cmdline())), None)
            if process is None and (state := self.state(run)) in _ENDED:
                raise AssertionError(f"The run is {state}, and {stage} was not seen:\n" + "\n".join(self.logs(run)))
            return process

        process = self.wait_for(found, what=f"the process of {stage}", timeout_s=timeout_s)
        process.suspend()
        try:
            yield process
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):  # it may have been killed meanwhile
                process.send_signal(signal.SIGCONT)

    def wait_until_told_to_end(self, held: psutil.Process, *, timeout_s: float = 240) -> None:
        """Until SIGTERM has been sent to a process that is held, which takes it in when it is let go."""

        def is_told() -> bool:
            status = Path(f"/proc/{held.pid}/status").read_text(encoding="utf-8")
            pending = re.findall(r"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)$", status, re.MULTILINE)
            return any(int(signals, 16) >> (signal.SIGTERM - 1) & 1 for signals in pending)

        self.wait_for(is_told, what=f"SIGTERM for process {held.pid}", timeout_s=timeout_s)

    def processes(self, sign: str) -> Iterator[psutil.Process]:
        """Processes that work in the folder and have `sign` in their command line."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                words = " ".join(process.cmdline())
                is_server = any(word in words for word in (" server ", "mlflow.server", "prefect.server"))
                inside = Path(process.cwd()).is_relative_to(self.folder) or str(self.folder) in words
                if sign in words and inside and not is_server:
                    yield process
