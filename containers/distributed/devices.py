"""Device and precision of a rank, from the GPU profile."""

import os

import torch

from containers.contracts.hardware import GpuProfile
from containers.harness.errors import MissingPrerequisiteError


def compute_device(profile: GpuProfile) -> torch.device:
    """Return this rank's GPU, or the CPU if the profile has no GPU.

    Raises:
        MissingPrerequisiteError: the profile has GPUs, but torch sees none.
    """
    if profile.num_gpus == 0:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MissingPrerequisiteError(
            f"Profile {profile.name} has {profile.num_gpus} GPUs, torch {torch.__version__} sees none. "
            f"Check the driver and that torch is a CUDA build."
        )
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def compute_dtype(profile: GpuProfile) -> torch.dtype:
    """Return bfloat16 if the profile's precision is bf16, else float32."""
    return torch.bfloat16 if profile.precision == "bf16" else torch.float32
