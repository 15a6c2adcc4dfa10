"""With what the stages are run: Docker image or process, and the digest that stands for their programs."""

from dataclasses import dataclass
from typing import Literal

from containers.launch.docker import stage_image_digest
from tasks.runtime_choice import choose_runtime, present_stages_digest
from tasks.stage_key import process_code_digest


@dataclass(frozen=True)
class CodeIdentity:
    """What runs.

    Attributes:
        reason: why this runtime, in words for a person.
        image_digest: `sha256:…` of the stage image; empty for processes.
        stages_digest: digest of the stage sources that the orchestrator knows.
    """

    runtime: Literal["docker", "process"]
    reason: str
    image_digest: str
    stages_digest: str

    @property
    def digest(self) -> str:
        """The image, or sources and installed versions: part of every stage key."""
        return self.image_digest or process_code_digest(self.stages_digest)


def code_identity(wanted: Literal["auto", "docker", "process"], *, image: str) -> CodeIdentity:
    """What `wanted` means on this machine, now.

    Raises:
        LaunchError: Docker was asked for, and its image is missing or no daemon answers.
    """
    runtime, reason = choose_runtime(wanted, image=image)
    return CodeIdentity(
        runtime=runtime,
        reason=reason,
        image_digest=stage_image_digest(image) if runtime == "docker" else "",
        stages_digest=present_stages_digest(),
    )
