"""Which runtime `auto` means on this machine, and why; the sentence is shown to the person."""

from typing import Literal

from containers.launch.docker_state import DockerState, ImageState, read_docker, read_image

Runtime = Literal["docker", "process"]
NOT_ASKED = DockerState(problem="not asked")


def choose_runtime(wanted: Literal["auto", "docker", "process"], *, image: str) -> tuple[Runtime, str]:
    """The runtime that `auto` means here, and one sentence why. A runtime that is asked for by name is taken."""
    if wanted == "process":
        return judge_runtime(wanted, NOT_ASKED, ImageState(name=image))
    return judge_runtime(wanted, read_docker(), read_image(image))


def judge_runtime(
    wanted: Literal["auto", "docker", "process"], docker: DockerState, image: ImageState
) -> tuple[Runtime, str]:
    """The runtime for what was found of daemon and image, and one sentence why. Pure."""
    if wanted == "process":
        return "process", "process: runtime.kind asks for it"
    if wanted == "docker":
        return "docker", "docker: runtime.kind asks for it"
    if not docker.answers:
        return "process", f"process: {docker.problem}"
    if not image.present:
        return "process", f"process: Docker answers, but the image {image.name} is {image.problem} (`make image`)"
    return "docker", f"docker: version {docker.version} answers and {image.name} is there"
