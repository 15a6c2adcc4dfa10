"""Against a real Prefect server: what a person sees of a run while it goes on, and of one that reuses its stages."""

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest
from faults.mortal_server import Prefect
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import Artifact, TaskRun
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings

from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.spec import ArtifactRef
from containers.launch.base import LaunchRequest, StageExit
from containers.launch.process import ProcessRuntime
from tasks.mlflow_sync.tracking import Tracking
from tasks.pipeline.run_stage import run_stage
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_stage
from tasks.prefect_sync.link import linked_to_prefect
from tasks.prefect_sync.naming import correct_name, introduce_run
from tasks.run.runtime import CodeIdentity
from tasks.run.state import PipelineRun
from tests.unit.factories.run_config import run_config

pytestmark = pytest.mark.slow

# A training without torch: tells its progress, waits for the file `go`, and publishes.
PROGRAM = """
import os, time
from pathlib import Path
from containers.contracts.manifest import Manifest
from containers.contracts.outcome import StageResult
from containers.contracts.digests import file_entries, write_atomically
from containers.harness.recorder import Recorder
work, key = Path.cwd(), {key!r}
recorder = Recorder(work / "events.jsonl")
for step in (1, 2):
    recorder.metrics(step, {{"reward": step / 2, "kl": 0.1 * step}})
    recorder.progress(step, 8, unit="steps", text=f"reward {{step / 2}}")
while not Path({go!r}).exists():
    time.sleep(0.05)
print("the last words")
output = work / "output"
output.mkdir(exist_ok=True)
(output / "made.txt").write_text("content")
manifest = Manifest(stage="train_policy", key=key, files=file_entries(output), created_at="2026-01-01T00:00:00Z")
write_atomically(output / "MANIFEST.json", manifest.model_dump_json())
write_atomically(work / "outcome.json", StageResult(stage="train_policy", key=key, duration_s=1).model_dump_json())
"""


class ScriptRuntime(ProcessRuntime):
    """The real process runtime with the program above."""

    def __init__(self, go: Path) -> None:
        super().__init__()
        self._go = go

    def run(self, launch: LaunchRequest) -> StageExit:
        self._command = (sys.executable, "-c", PROGRAM.format(key=launch.spec.key, go=str(self._go)))
        return super().run(launch)


@StageTask
def train_policy(run: PipelineRun) -> ArtifactRef:
    artifact = run_stage(run, TrainPolicyConfig(), ())
    correct_name(run, "data@main", "data@2f1a")
    show_stage(run, artifact.stage, "## Ready", description="Ready")
    return artifact


@StageTask
def write_report(run: PipelineRun, policy: ArtifactRef) -> str:
    return policy.key


@dataclass
class Pages:
    """A server, the flow runs on it in order, and what was shown while the first of them went on."""

    prefect: Prefect
    client: SyncPrefectClient
    flow_run_ids: list[UUID] = field(default_factory=list)
    artifacts: list[ArtifactRef] = field(default_factory=list)
    while_running: list[Artifact] = field(default_factory=list)

    def shown(self, number: int) -> dict[str, list[Artifact]]:
        """Key → artifacts of that flow run."""
        found: dict[str, list[Artifact]] = {}
        only = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[self.flow_run_ids[number]]))
        for artifact in self.client.read_artifacts(artifact_filter=only, limit=50):
            if artifact.key:
                found.setdefault(artifact.key, []).append(artifact)
        return found

    def tasks(self, number: int) -> dict[str, TaskRun]:
        only = FlowRunFilter(id=FlowRunFilterId(any_=[self.flow_run_ids[number]]))
        return {task_run.name: task_run for task_run in self.client.read_task_runs(flow_run_filter=only)}

    def watch(self, go: Path, ended: threading.Event) -> None:
        """Let the stage end as soon as the server shows its page and its progress."""
        while not ended.wait(0.2):
            found = self.client.read_artifacts(limit=50)
            if {"train-policy", "train-policy-progress"} <= {artifact.key for artifact in found}:
                self.while_running = found
                break
        go.touch()


def run_once(pages: Pages, folder: Path, *, name: str) -> None:
    @flow(name="rlhf", flow_run_name=f"own · data@main · {name}")
    def pipeline() -> None:
        output_dir = folder / name
        with linked_to_prefect(output_dir, say=lambda text: None) as should_stop:
            run = PipelineRun(
                run_config(name, output_dir=output_dir, store_dir=folder / "store"),
                runtime=ScriptRuntime(folder / "go"),
                image=None,
                code=CodeIdentity(runtime="process", reason="", image_digest="", stages_digest="sha256:1"),
                tracking=Tracking("http://127.0.0.1:9", output_dir=output_dir),  # nobody listens there
                should_stop=should_stop,
            )
            run.prefect_url = f"{pages.prefect.uri}/runs/flow-run/{flow_run.id}"
            pages.flow_run_ids.append(UUID(str(flow_run.id)))
            introduce_run(run, [f"run:{name}", "profile:cpu"])
            pages.artifacts.append(train_policy(run))
            assert write_report(run, pages.artifacts[-1]) == pages.artifacts[-1].key

    pipeline()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    folder = tmp_path_factory.mktemp("pages")
    prefect = Prefect(folder / "prefect")
    made = Pages(prefect, prefect.client)
    ended = threading.Event()
    watcher = threading.Thread(target=made.watch, args=(folder / "go", ended))
    try:
        made.prefect.start()
        watcher.start()
        with temporary_settings({PREFECT_API_URL: made.prefect.api_url}):
            run_once(made, folder, name="first")
            run_once(made, folder, name="second")
        for number, state in enumerate(("Completed", "Reused")):
            wait_for_state(made, number, state)
        yield made
    finally:
        ended.set()
        made.prefect.stop()


def wait_for_state(pages: Pages, number: int, state: str) -> None:
    """The server works through what it was told about tasks after it answered."""
    deadline = time.monotonic() + 30
    while (task_run := pages.tasks(number).get("train_policy")) is None or task_run.state_name != state:
        assert time.monotonic() < deadline, f"{task_run and task_run.state_name} instead of {state}"
        time.sleep(0.1)


def test_a_running_stage_shows_progress_figures_and_curves(pages: Pages) -> None:
    shown = {artifact.key: artifact for artifact in pages.while_running}
    bar, page = shown["train-policy-progress"], shown["train-policy"]
    assert (bar.type, bar.data) == ("progress", 25.0)
    assert "2 of 8 steps reward 1.0" in str(bar.description)
    assert "| Reward | 1.00 | 2 |" in str(page.data)
    assert str(page.data).count("data:image/svg+xml") == 2


def test_a_finished_stage_has_a_full_bar_and_one_page_that_replaced_its_figures(pages: Pages) -> None:
    shown = pages.shown(0)
    (bar,), (page,) = shown["train-policy-progress"], shown["train-policy"]
    assert (bar.data, bar.description) == (100.0, "Done: 2 of 8 steps reward 1.0")
    assert (page.data, page.description) == ("## Ready", "Ready")


def test_a_reused_stage_says_so_and_who_made_it(pages: Pages) -> None:
    state = pages.tasks(1)["train_policy"].state
    assert state is not None
    assert (state.type.value, state.name) == ("COMPLETED", "Reused")
    assert str(state.message).startswith("Made by run first (")
    assert str(state.message).endswith("on 1 January 2026, 00:00 UTC.")
    (page,) = pages.shown(1)["train-policy"]
    assert "Reused: made by run first (" in str(page.data)
    assert f"[That run]({pages.prefect.uri}/runs/flow-run/{pages.flow_run_ids[0]})" in str(page.data)
    assert "train-policy-progress" not in pages.shown(1)


def test_a_reused_stage_hands_on_its_artifact_and_keeps_its_edge_in_the_graph(pages: Pages) -> None:
    first, second = pages.artifacts
    assert first == second
    for number in (0, 1):
        tasks = pages.tasks(number)
        (edge,) = tasks["write_report"].task_inputs["policy"]
        assert edge.id == tasks["train_policy"].id  # type: ignore[union-attr]


def test_a_run_is_named_as_known_in_the_end_and_tagged(pages: Pages) -> None:
    for number, name in enumerate(("first", "second")):
        shown = pages.client.read_flow_run(pages.flow_run_ids[number])
        assert shown.name == f"own · data@2f1a · {name}"
        assert set(shown.tags) == {f"run:{name}", "profile:cpu"}


def test_what_a_stage_made_of_what_stands_in_the_event_feed(pages: Pages) -> None:
    wanted = {"filter": {"event": {"name": ["prefect.asset.materialization.succeeded"]}}}
    deadline = time.monotonic() + 30
    while not (found := pages.client.request("POST", "/events/filter", json=wanted).json()["events"]):
        assert time.monotonic() < deadline, "the event did not come"
        time.sleep(0.2)
    (event,) = found  # what is reused is not made again
    assert event["resource"]["prefect.resource.id"] == "rlhf://first/train_policy"
    assert event["payload"]["digest"] == pages.artifacts[0].digest


@pytest.mark.browser
def test_a_person_sees_the_curves_as_pictures(pages: Pages) -> None:
    from ui.chromium import chromium

    running = next(str(item.data) for item in pages.while_running if item.key == "train-policy")
    answer = pages.client.request("POST", "/artifacts/", json={"key": "seen", "type": "markdown", "data": running})
    with chromium() as browser:
        page = browser.new_page()
        page.goto(f"{pages.prefect.uri}/artifacts/artifact/{answer.json()['id']}")
        picture = page.get_by_alt_text("Reward")
        picture.wait_for(timeout=60_000)
        assert picture.evaluate("image => image.naturalWidth") == 480  # 5 inches
        assert page.get_by_role("cell", name="Reward", exact=True).is_visible()
