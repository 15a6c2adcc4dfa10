"""Read the state of the Docker daemon and of the stage image, within a time limit; each failure becomes a reason."""

import os
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound
from docker.utils import parse_host

from containers.formatting import one_line, short_digest

STAGES_DIGEST_LABEL = "rlhf.stages_digest"
# Packages beyond those of every stage image (build.sh --with), as they were given to pip.
EXTRAS_LABEL = "rlhf.extras"
# CUDA that its torch was built with, or `none`.
CUDA_LABEL = "rlhf.cuda"
WITHOUT_DOCKER = "use the process runtime (`--set runtime.kind=process`)"
_SHOWN_CHARACTERS = 200
_LOOK_LIMIT_S = 5
_SOCKET_URL = "http+unix://"
# The tag of images that need no BASE_IMAGE.
_FOR_CPU = ":cpu"
_ASK_BY_HAND = "Run `docker info` by hand; it must end without error."
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))


@dataclass(frozen=True)
class DockerState:
    """A Docker daemon, or why there is none.

    Attributes:
        limits_memory: whether it can limit a container's memory; a rootless one needs delegated control groups.
        problem: why no daemon answers; empty where one does.
        advice: what to do about it.
    """

    version: str = ""
    runtimes: tuple[str, ...] = ()
    nvidia_by_cdi: bool = False
    memory_bytes: int = 0
    limits_memory: bool = True
    problem: str = ""
    advice: str = ""

    @property
    def answers(self) -> bool:
        """Whether a daemon answers."""
        return not self.problem

    @property
    def hands_out_gpus(self) -> bool:
        """Whether the NVIDIA runtime is registered or a CDI specification names NVIDIA devices."""
        return "nvidia" in self.runtimes or self.nvidia_by_cdi


@dataclass(frozen=True)
class ImageState:
    """An image on the daemon's machine, or why there is none.

    Attributes:
        digest: `sha256:…`; empty where the image is not there.
        stages_digest: the label with the digest of its stage sources; empty where it has none.
        extras: packages that it was built with beyond those of every stage image.
        cuda: that its torch was built with, as `13.0`, or `none`; empty where it does not say.
        problem: why there is none, as text to follow the image's name; empty where the image is there.
        advice: what to do about it.
    """

    name: str
    digest: str = ""
    stages_digest: str = ""
    extras: tuple[str, ...] = ()
    cuda: str = ""
    problem: str = ""
    advice: str = ""

    @property
    def present(self) -> bool:
        """Whether the image is there, stage image or not."""
        return not self.problem

    def lack(self, *, stages_digest: str) -> tuple[str, str]:
        """Why it cannot start stages, as text to follow its name, and what to do; empty where it can.

        Args:
            stages_digest: of the sources that the orchestrator has; the image must have been built from the same.
        """
        if not self.present:
            return self.problem, self.advice
        if not self.stages_digest:
            advice = f"{_built_as('rlhf-stage:mine')}; set runtime.image to that name, or leave it out."
            return f"is no stage image (it has no label {STAGES_DIGEST_LABEL})", advice
        if self.stages_digest != stages_digest:
            built, present = short_digest(self.stages_digest), short_digest(stages_digest)
            advice = f"{_built_as(self.name)}, from the present sources."
            return f"was built from other stage programs ({built}) than the present ones ({present})", advice
        return "", ""


def open_client(*, timeout_s: int) -> docker.DockerClient:
    """Return a client of the daemon at DOCKER_HOST or the default socket, after one answer of the daemon.

    Raises:
        DockerException, requests.RequestException, OSError, ValueError: no answer; `why_no_daemon` explains it.
    """
    address = str(parse_host(os.environ.get("DOCKER_HOST")))
    if address.startswith(_SOCKET_URL):
        # The SDK never closes a socket that no daemon listens on, so this connects to the socket first.
        with socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(timeout_s)
            trial.connect("/" + address.removeprefix(_SOCKET_URL).lstrip("/"))
    return docker.from_env(timeout=timeout_s)


def read_docker(*, timeout_s: int = _LOOK_LIMIT_S) -> DockerState:
    """State of the daemon at DOCKER_HOST or the default socket, or why there is none; never raises."""
    try:
        with closing(open_client(timeout_s=timeout_s)) as client:
            info: Mapping[str, Any] = client.info()
    except (DockerException, requests.RequestException, OSError, ValueError) as error:
        problem, advice = why_no_daemon(error, timeout_s=timeout_s)
        return DockerState(problem=problem, advice=advice)
    return DockerState(
        version=str(info.get("ServerVersion") or "unknown"),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        nvidia_by_cdi=_has_nvidia_cdi(info),
        memory_bytes=int(info.get("MemTotal") or 0),
        limits_memory=info.get("MemoryLimit") is not False,
    )


def read_image(name: str) -> ImageState:
    """State of the named image on the daemon's machine, or why there is none; never raises, never pulls."""
    try:
        with closing(open_client(timeout_s=_LOOK_LIMIT_S)) as client:
            image = client.images.get(name)
            labels: Mapping[str, str] = image.labels or {}
            return ImageState(
                name=name,
                digest=str(image.id),
                stages_digest=labels.get(STAGES_DIGEST_LABEL, ""),
                extras=tuple(labels.get(EXTRAS_LABEL, "").split()),
                cuda=labels.get(CUDA_LABEL, ""),
            )
    except APIError as error:
        problem, advice = why_no_image(error, name)
    except (DockerException, requests.RequestException, OSError, ValueError) as error:
        problem, advice = why_no_daemon(error, timeout_s=_LOOK_LIMIT_S)
        problem = f"cannot be looked up: {problem}"
    return ImageState(name=name, problem=problem, advice=advice)


def why_no_image(error: APIError, name: str) -> tuple[str, str]:
    """Why the daemon does not show the image, as text to follow its name, and what to do."""
    if isinstance(error, ImageNotFound):
        return "is not on this machine", f"{_built_as(name)}; runtime.image names another."
    text = str(error.explanation or error).removeprefix(f"no such image: {name}: ")
    text = one_line(text, _SHOWN_CHARACTERS)
    if error.is_client_error():
        return f"cannot be the name of an image: {text}", "Correct runtime.image, or leave it out."
    return f"cannot be looked up: {text}", _ASK_BY_HAND


def _built_as(name: str) -> str:
    """The command that builds an image of that name; without BASE_IMAGE its base is the plain Python image."""
    command = f"`make image IMAGE={name}` builds it"
    return command if name.endswith(_FOR_CPU) else f"{command} (for GPUs with BASE_IMAGE=… too: docs/hardware.md)"


def _has_nvidia_cdi(info: Mapping[str, Any]) -> bool:
    """Whether CDI names NVIDIA devices: Docker 28 lists devices; before, look at the files in its CDI folders."""
    listed = info.get("DiscoveredDevices") or ()
    if any(str(device.get("ID", "")).startswith("nvidia.com/gpu") for device in listed):
        return True
    folders = [Path(folder) for folder in info.get("CDISpecDirs") or ()]
    return any(folder in _CDI_FOLDERS and any(folder.glob("nvidia*")) for folder in folders)


def why_no_daemon(error: Exception, *, timeout_s: int) -> tuple[str, str]:
    """Why no daemon answers, and what to do. The SDK puts the cause into the text of its own exception."""
    text = str(error)
    causes = (
        (
            ("Permission denied", "PermissionError"),
            "this user may not open the Docker socket",
            f"Join the docker group (`sudo usermod -aG docker $USER`, log in again), or {WITHOUT_DOCKER}.",
        ),
        (
            ("FileNotFoundError", "No such file or directory"),
            "there is no Docker socket",
            f"Install and start Docker (`systemctl start docker`), set DOCKER_HOST, or {WITHOUT_DOCKER}.",
        ),
        (
            ("Connection refused", "ConnectionRefusedError"),
            "the Docker socket is there, but no daemon listens",
            f"Start the daemon (`systemctl start docker`), or {WITHOUT_DOCKER}.",
        ),
        (
            ("timed out", "Timeout"),
            f"the daemon did not answer within {timeout_s} s",
            f"Look at `journalctl -u docker`; restart the daemon, or {WITHOUT_DOCKER}.",
        ),
    )
    for signs, problem, advice in causes:
        if any(sign in text or sign == type(error).__name__ for sign in signs):
            return problem, advice
    return one_line(f"the daemon's answer cannot be used: {text}", _SHOWN_CHARACTERS), _ASK_BY_HAND
