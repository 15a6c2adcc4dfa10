"""Divide a stage's GPUs between its ranks and vLLM, before torch is imported."""

from collections.abc import MutableMapping

from containers.contracts.hardware import GpuProfile

# For the ranks; in the form of CUDA_VISIBLE_DEVICES.
ROLLOUT_GPUS_VARIABLE = "RLHF_ROLLOUT_GPUS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def part_gpus(profile: GpuProfile, environment: MutableMapping[str, str]) -> None:
    """Show the ranks the first GPUs and write the others into a variable for vLLM, if the profile has some for it.

    A single rank that saw all GPUs would use all of them: transformers' Trainer spreads each batch over them.
    """
    if not profile.num_rollout_gpus:
        return
    named = [name for name in environment.get(_VISIBLE, "").split(",") if name]
    gpus = named or [str(index) for index in range(profile.num_gpus)]
    environment[_VISIBLE] = ",".join(gpus[: profile.num_processes])
    environment[ROLLOUT_GPUS_VARIABLE] = ",".join(gpus[profile.num_processes :])
