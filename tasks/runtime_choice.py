"""Which runtime `auto` means on this machine, and why; check and run both ask here, so they agree."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from containers.digests import source_digest
from containers.launch.docker_state import DockerState, ImageState, read_docker, read_image

Runtime = Literal["docker", "process"]
NOT_ASKED = DockerState(problem="not asked")
_CONTAINERS = Path(__file__).resolve().parents[1] / "containers"


@dataclass(frozen=True)
class RuntimeChoice:
    """With what the stages are run.

    Attributes:
        reason: why, in words for a person.
        advice: how to get Docker, where Docker answers and `auto` does without it; empty otherwise.
    """

    runtime: Runtime
    reason: str
    advice: str = ""

    @property
    def text(self) -> str:
        """Reason and advice in one."""
        return f"{self.reason}. {self.advice}" if self.advice else self.reason


def choose_runtime(wanted: Literal["auto", "docker", "process"], *, image: str) -> tuple[Runtime, str]:
    """The runtime that `wanted` means on this machine, now, and why."""
    docker, state = NOT_ASKED, ImageState(name=image)
    if wanted != "process":
        docker, state = read_docker(), read_image(image)
    choice = judge_runtime(wanted, docker, state, stages_digest=present_stages_digest())
    return choice.runtime, choice.text


def judge_runtime(
    wanted: Literal["auto", "docker", "process"], docker: DockerState, image: ImageState, *, stages_digest: str
) -> RuntimeChoice:
    """The runtime for what was found of daemon and image. Pure. A runtime that is asked for by name is taken.

    Args:
        stages_digest: of the sources that the orchestrator has; `auto` takes no image from others.
    """
    if wanted == "process":
        return RuntimeChoice("process", "process: runtime.kind asks for it")
    if wanted == "docker":
        return RuntimeChoice("docker", "docker: runtime.kind asks for it")
    if not docker.answers:
        return RuntimeChoice("process", f"process: {docker.problem}")
    lack, advice = image.lack(stages_digest=stages_digest)
    if lack:
        return RuntimeChoice("process", f"process: Docker answers, but the image {image.name} {lack}", advice)
    return RuntimeChoice("docker", f"docker: version {docker.version} answers and {image.name} is there")


def present_stages_digest() -> str:
    """Digest of the stage programs that the orchestrator has."""
    return source_digest(_CONTAINERS)
