"""Which of a stage's GPUs its ranks see, and which are left to vLLM; decided before torch is imported."""

from collections.abc import MutableMapping

from containers.contracts.hardware import GpuProfile

# Told to the ranks in the form of CUDA_VISIBLE_DEVICES.
ROLLOUT_GPUS_VARIABLE = "RLHF_ROLLOUT_GPUS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def part_gpus(profile: GpuProfile, environment: MutableMapping[str, str]) -> None:
    """Leave the ranks the first GPUs and write the others down for vLLM, where the profile has some without a rank.

    A single rank that saw them all would take them for its own: transformers' Trainer spreads each batch over them.
    """
    if not profile.num_rollout_gpus:
        return
    named = [name for name in environment.get(_VISIBLE, "").split(",") if name]
    gpus = named or [str(index) for index in range(profile.num_gpus)]
    environment[_VISIBLE] = ",".join(gpus[: profile.num_processes])
    environment[ROLLOUT_GPUS_VARIABLE] = ",".join(gpus[profile.num_processes :])
