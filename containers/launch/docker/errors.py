"""Translate the Docker daemon's errors into launch errors (the tree in `launch/base.py`). Pure functions."""

import docker

from containers.launch.base import (
    CreateRefusedError,
    DaemonInfrastructureError,
    DaemonUnreachableError,
    GpuUnavailableError,
    ImageMissingError,
    InputUnusableError,
    LaunchError,
    LaunchRequest,
    NameTakenError,
)
from containers.launch.docker.state import why_no_image


def launch_error(error: Exception, launch: LaunchRequest) -> LaunchError:
    """The launch error for a failed create or start."""
    stage, text = launch.spec.stage, str(getattr(error, "explanation", None) or error)
    if isinstance(error, docker.errors.ImageNotFound):
        return image_missing(error, str(launch.image))
    if isinstance(error, docker.errors.APIError):
        return _daemon_error(text, error.status_code, launch)
    return DaemonUnreachableError(f"The Docker daemon stopped answering before {stage} was started: {text}")


def _daemon_error(text: str, status_code: int | None, launch: LaunchRequest) -> LaunchError:
    stage = launch.spec.stage
    if status_code == 409 and "is already in use by container" in text:
        return NameTakenError(f"Another run started {stage} with this key at the same moment: {text}")
    if "could not select device driver" in text or "nvidia-container-cli" in text:
        return GpuUnavailableError(
            f"{stage} needs {launch.spec.profile.num_gpus} GPUs and Docker cannot provide them: {text}\n"
            "Install the NVIDIA container toolkit, or check the driver with `nvidia-smi`; `rlhf check` shows both."
        )
    if "bind source path does not exist" in text:
        return InputUnusableError(f"{stage}: the daemon does not see a folder that it must mount: {text}")
    infrastructure = ("could not find bridge", "no space left on device", "shim", "containerd", "layer does not exist")
    if any(words in text.lower() for words in infrastructure):
        return DaemonInfrastructureError(
            f"The Docker daemon could not start {stage}; the daemon itself is broken: {text}\n"
            "Look at the daemon's log, free its disk, or restart it (`systemctl restart docker`)."
        )
    return CreateRefusedError(f"The Docker daemon refused the container of {stage}: {text}")


def image_missing(error: docker.errors.APIError, image: str) -> ImageMissingError:
    """The launch error for an image that the daemon does not show."""
    problem, advice = why_no_image(error, image)
    return ImageMissingError(f"The stage image {image} {problem}. {advice}")
