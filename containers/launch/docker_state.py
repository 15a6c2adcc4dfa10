"""What a Docker daemon and the stage image are, read once and bounded in time; every odd answer becomes a reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound

STAGES_DIGEST_LABEL = "rlhf.stages_digest"
_SHOWN_CHARACTERS = 200
_CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))


@dataclass(frozen=True)
class DockerState:
    """A Docker daemon, or why there is none.

    Attributes:
        problem: why no daemon answers; empty where one does.
        advice: what to do about it.
    """

    version: str = ""
    runtimes: tuple[str, ...] = ()
    nvidia_by_cdi: bool = False
    memory_bytes: int = 0
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
        stages_digest: the label that says from which sources it was built; empty where it has none.
        problem: why there is none; empty where the image is there.
    """

    name: str
    digest: str = ""
    stages_digest: str = ""
    problem: str = ""

    @property
    def present(self) -> bool:
        """Whether the image can be started."""
        return not self.problem


def read_docker(*, timeout_s: int = 5) -> DockerState:
    """The daemon that DOCKER_HOST or the default socket leads to, or why there is none; never raises."""
    try:
        client = docker.from_env(timeout=timeout_s)
        try:
            info: Mapping[str, Any] = client.info()
        finally:
            client.close()
    except (DockerException, requests.RequestException, OSError, ValueError) as error:
        problem, advice = _why_no_daemon(error, timeout_s=timeout_s)
        return DockerState(problem=problem, advice=advice)
    return DockerState(
        version=str(info.get("ServerVersion") or "unknown"),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        nvidia_by_cdi=_has_nvidia_cdi(info),
        memory_bytes=int(info.get("MemTotal") or 0),
    )


def read_image(name: str, *, timeout_s: int = 5) -> ImageState:
    """The image of that name on the daemon's machine, or why there is none; never raises, never pulls."""
    try:
        client = docker.from_env(timeout=timeout_s)
        try:
            image = client.images.get(name)
            labels: Mapping[str, str] = image.labels or {}
            return ImageState(name=name, digest=str(image.id), stages_digest=labels.get(STAGES_DIGEST_LABEL, ""))
        finally:
            client.close()
    except ImageNotFound:
        return ImageState(name=name, problem="not on this machine")
    except APIError as error:
        return ImageState(name=name, problem=_shortened(f"the daemon refuses the name: {error.explanation or error}"))
    except (DockerException, requests.RequestException, OSError, ValueError) as error:
        return ImageState(name=name, problem=_why_no_daemon(error, timeout_s=timeout_s)[0])


def _has_nvidia_cdi(info: Mapping[str, Any]) -> bool:
    """Docker 28 lists the devices itself; before, CDI is on where it names folders, and the files say the rest."""
    listed = info.get("DiscoveredDevices") or ()
    if any(str(device.get("ID", "")).startswith("nvidia.com/gpu") for device in listed):
        return True
    folders = [Path(folder) for folder in info.get("CDISpecDirs") or ()]
    return any(folder in _CDI_FOLDERS and any(folder.glob("nvidia*")) for folder in folders)


def _why_no_daemon(error: Exception, *, timeout_s: int) -> tuple[str, str]:
    """What hinders, and what to do. The SDK packs the cause into the text of its own exception."""
    text = str(error)
    causes = (
        (
            ("Permission denied", "PermissionError"),
            "this user may not open the Docker socket",
            "Join the docker group (`sudo usermod -aG docker $USER`, log in again), or use the process runtime.",
        ),
        (
            ("FileNotFoundError", "No such file or directory"),
            "there is no Docker socket",
            "Install and start Docker (`systemctl start docker`), set DOCKER_HOST, or use the process runtime.",
        ),
        (
            ("Connection refused", "ConnectionRefusedError"),
            "the Docker socket is there, but no daemon listens",
            "Start the daemon (`systemctl start docker`), or use the process runtime.",
        ),
        (
            ("timed out", "Timeout"),
            f"the daemon did not answer within {timeout_s} s",
            "Look at `journalctl -u docker`; restart the daemon, or use the process runtime.",
        ),
    )
    for signs, problem, advice in causes:
        if any(sign in text or sign == type(error).__name__ for sign in signs):
            return problem, advice
    return _shortened(
        f"the daemon's answer cannot be used: {text}"
    ), "Run `docker info` by hand; it must end without error."


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
