"""The input of a stage: one file, `spec.json`, mounted read-only."""

from typing import Literal

from pydantic import Field

from containers.contracts.base import Frozen, Name
from containers.contracts.configs.parts.ladder import Fallback
from containers.contracts.configs.stages import StageConfig
from containers.contracts.hardware import BatchPlan, GpuProfile, RequiredContract
from containers.contracts.names import StageName
from containers.contracts.registries import RuntimeName


class StageInput(Frozen):
    """A file or folder that the stage reads.

    `digest` names its content: `sha256:…` (manifest or file), `hub:<commit>` (a snapshot of a hub revision).
    `path` is where the stage sees it; the runtime rewrites it when it mounts the input.
    """

    name: Name
    path: str = Field(min_length=1)
    digest: str = Field(min_length=1)
    origin: str = Field("", description="For users: `nvidia/HelpSteer3@2f1a… preference/train.jsonl.gz`")


class StageSpec(Frozen):
    """All settings and inputs of a stage program."""

    contract_version: Literal[1] = 1
    stage: StageName
    key: str = Field(pattern=r"^[0-9a-f]{64}$", description="Content key: the same work has the same key")
    config: StageConfig
    inputs: tuple[StageInput, ...] = ()
    seed: int = Field(ge=0, lt=2**32)
    profile: GpuProfile
    batch: BatchPlan
    required: RequiredContract
    runtime: RuntimeName
    image_digest: str = Field("", description="`sha256:…` of the stage image; empty for the process runtime")
    run_id: str = Field("", description="Pipeline run; not part of the key")
    attempt: int = Field(1, ge=1, description="Not part of the key")
    timeout_s: float | None = Field(None, gt=0, description="Not part of the key")
    silence_limit_s: float | None = Field(
        None, gt=0, description="Longest time without a sign of life: log or events. Not part of the key"
    )
    start_over_if_damaged: bool = Field(
        False, description="Start at step 0 where every checkpoint is damaged; else refuse. Not part of the key"
    )
    ladder: tuple[Fallback, ...] = Field(
        (),
        description="How this attempt differs from the planned work: config, profile and batch have it already. "
        "Not part of the key",
    )
    program_files: tuple[str, ...] = Field(
        (),
        description="Sources below containers/ that the stage's program may load, by their imports; its manifest "
        "lists others that it loads. Empty: nothing is compared. Not part of the key",
    )
    work_path: str = Field(min_length=1, description="The one folder that the stage may write, as the stage sees it")


class ArtifactRef(Frozen):
    """A published artifact: verified folder plus digest."""

    stage: StageName
    key: str = Field(pattern=r"^[0-9a-f]{64}$")
    path: str
    digest: str
