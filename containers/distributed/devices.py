"""Device and precision of a rank, from the GPU profile."""

import os

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

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


def device_of(model: PreTrainedModel) -> torch.device:
    """Return where a model computes; the weights of a divided one may lie in host memory meanwhile."""
    weight = next(model.parameters())
    if isinstance(weight, DTensor) and weight.device_mesh.device_type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    found: torch.device = model.device
    return found


def compute_dtype(profile: GpuProfile) -> torch.dtype:
    """Return bfloat16 if the profile's precision is bf16, else float32."""
    return torch.bfloat16 if profile.precision == "bf16" else torch.float32
