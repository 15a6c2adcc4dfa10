"""A run in containers, in a store of its own, where all before one stage is finished."""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container
from tiny_project import Driven, TinyProject, curves, notes, recorded_steps, weights_digest

from containers.contracts.names import SPEC_FILE, StageName
from containers.contracts.spec import StageSpec

STAGE_IMAGE = os.environ.get("RLHF_STAGE_IMAGE", "rlhf-stage:cpu")
REWARD = StageName.TRAIN_REWARD_MODEL
BEFORE = (StageName.FILTER_DATASET, StageName.BUILD_BASE_MODEL)
DOCKER = ("runtime.kind=docker", f"runtime.image={STAGE_IMAGE}")
TOO_SMALL = Path(__file__).with_name("drive_too_small.py")
REFERENCE_STORE = "contained-store"
SAVES_EVERY = 5


@dataclass(frozen=True)
class Trained:
    """The reward model that nobody disturbed."""

    key: str
    weights: str
    curves: dict[int, dict[str, float]]


@dataclass
class Scene:
    """One run in a store of its own, where all before its stage is finished."""

    tiny: TinyProject
    client: docker.DockerClient
    name: str
    began_s: int
    docker_host: str = os.environ.get("DOCKER_HOST", "")
    stage: StageName = REWARD

    @property
    def store(self) -> str:
        return f"{self.name}-store"

    @property
    def settings(self) -> tuple[str, ...]:
        return (f"run.name={self.name}", f"run.store_dir=outputs/{self.store}", *DOCKER)

    @property
    def work(self) -> Path:
        found = self.tiny.work_of(self.stage, store=self.store)
        assert found is not None
        return found

    def drive(self, *overrides: str) -> Driven:
        return self.tiny.drive(self.stage, *self.settings, *overrides, environment={"DOCKER_HOST": self.docker_host})

    def drive_too_small(self, what: str, room: int) -> Driven:
        """The same, where its stage meets a machine that is too small; see `too_small_machine.py`."""
        command = [sys.executable, str(TOO_SMALL), what, str(room), "1", self.stage.value, "configs/runs/tiny.yaml"]
        return self.tiny._start(command, self.settings, {"DOCKER_HOST": self.docker_host})

    def drive_to_step(self, step: int) -> tuple[Driven, Container]:
        """A run whose container has recorded that optimizer step."""
        driven = self.drive()
        self.tiny.wait_for_step(self.stage, step, of=driven, store=self.store)
        (container,) = self.containers()
        return driven, container

    def containers(self) -> list[Container]:
        """Those of this run that are there, alive or dead."""
        return list(self.client.containers.list(all=True, filters={"label": f"rlhf.run_name={self.name}"}))

    def running(self) -> list[Container]:
        """Those of this run that work."""
        return [container for container in self.containers() if container.status == "running"]

    def num_created(self) -> int:
        """How many containers the daemon ever made for the stage of this run."""
        labels = [f"rlhf.run_name={self.name}", f"rlhf.stage={self.stage}"]
        wanted = {"type": "container", "event": "create", "label": labels}
        return len(list(self.client.events(since=self.began_s, until=int(time.time()) + 1, filters=wanted)))

    @property
    def attempts(self) -> Path:
        """Where each attempt at the stage has a folder."""
        return self.tiny.folder / "outputs" / self.store / "attempts" / self.stage / self.work.name

    def failure(self, attempt: int) -> dict[str, Any]:
        """What was kept of a failed attempt."""
        text = (self.attempts / f"attempt-{attempt}" / "failure.json").read_text()
        found: dict[str, Any] = json.loads(text)["failure"]
        return found

    def assert_exact(self, reference: Trained) -> None:
        """Bit for bit the training that nobody disturbed."""
        artifact = self.tiny.artifact(self.stage, self.name)
        assert weights_digest(artifact) == reference.weights
        assert curves(artifact) == reference.curves

    def assert_went_on(self, reference: Trained) -> str:
        """From a checkpoint, bit for bit, with at most the steps since that checkpoint repeated; says how many."""
        assert [note for note in notes(self.work) if note.startswith("Resuming from checkpoint-")], notes(self.work)
        self.assert_exact(reference)
        return self.repeated()

    def repeated(self) -> str:
        steps = recorded_steps(self.work)
        repeated = len(steps) - len(set(steps))
        assert repeated <= SAVES_EVERY
        return f"{repeated} steps of {max(steps)} (saved every {SAVES_EVERY})"


def said(driven: Driven) -> str:
    """What the person was told."""
    return "\n".join(event["said"] for event in driven.events if "said" in event)


def slowed(container: Container, *, percent: int = 20) -> None:
    """So little of a processor that the tiny stage lasts until somebody comes for it; no number changes."""
    container.update(cpu_period=100_000, cpu_quota=1000 * percent)


def at_full_speed(container: Container) -> None:
    container.update(cpu_period=100_000, cpu_quota=400_000)


def reference_spec(scene: Scene) -> StageSpec:
    """The spec of the undisturbed training, with the host's paths."""
    outputs = scene.tiny.folder / "outputs"
    (file,) = (outputs / REFERENCE_STORE / "attempts" / REWARD).glob(f"*/attempt-1/{SPEC_FILE}")
    spec = StageSpec.model_validate_json(file.read_text())
    sources = dict(zip(("pairs", "start_model"), BEFORE, strict=True))
    folders = {name: scene.tiny.artifact(stage, "contained") for name, stage in sources.items()}
    folders["start_model"] /= "model"
    inputs = tuple(item.model_copy(update={"path": str(folders[item.name])}) for item in spec.inputs)
    return spec.model_copy(update={"inputs": inputs})
