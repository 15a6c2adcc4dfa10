"""The GPU profile that `auto` stands for on this machine. A run that Prefect starts again keeps its own.

Without a GPU it computes in float32, on a thread for each core: bf16 takes a processor longer, also one that has
instructions for it, and training on one core leaves the others idle (benchmarks/processor_choice.md).
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from containers.contracts.hardware import GpuProfile
from containers.digests import write_atomically
from containers.launch.gpu_choice import NoProfileFitsError, choose_profile
from containers.launch.gpu_judgement import visible_gpus
from containers.launch.gpu_leases import lease_folder, leased_gpus
from containers.launch.gpus import read_gpus
from containers.launch.host_limits import usable_cores

__all__ = ["NoProfileFitsError", "auto_profile"]

logger = logging.getLogger(__name__)

# Prefect's runner names the flow run so in the process that it starts for it, also when it is retried or resumed.
_FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"


def auto_profile(
    ladder: Sequence[GpuProfile], without_gpu: GpuProfile, *, divides: Callable[[GpuProfile], str]
) -> GpuProfile:
    """The rung that the free GPUs carry; `chosen_because` says why.

    Args:
        ladder: profiles, the most wanted first.
        without_gpu: for a machine that has no GPU.
        divides: why the run's batches cannot be cut over a profile's ranks; empty where they can.

    Raises:
        NoProfileFitsError: there are GPUs, and none of them can be used.
    """
    memory = _memory()
    remembered = _remembered(memory, [*ladder, without_gpu])
    if remembered is not None:
        return remembered
    report = read_gpus()
    choice = choose_profile(
        ladder,
        without_gpu,
        report,
        visible_gpus(report.gpus, os.environ.get("CUDA_VISIBLE_DEVICES")),
        leased=leased_gpus([gpu.uuid for gpu in report.gpus], folder=lease_folder()),
        divides=divides,
    )
    profile = choice.profile.model_copy(update={"chosen_because": f"auto: {choice.reason}"})
    if not profile.num_gpus:
        profile = _on_all_cores(profile)
    if memory is not None:
        _remember(memory, profile)
    return profile


def _on_all_cores(profile: GpuProfile) -> GpuProfile:
    cores = usable_cores()
    threads = max(1, cores // profile.num_processes)
    words = f"{threads} thread(s) a rank on {cores} core(s), {profile.precision}"
    return profile.model_copy(update={"num_threads": threads, "chosen_because": f"{profile.chosen_because}; {words}"})


def _memory() -> Path | None:
    """Where the choice of the present flow run is kept; None outside one."""
    flow_run = os.environ.get(_FLOW_RUN_VARIABLE, "")
    return lease_folder() / "auto" / f"{flow_run}.json" if flow_run.replace("-", "").isalnum() else None


def _remembered(memory: Path | None, possible: Sequence[GpuProfile]) -> GpuProfile | None:
    """What was chosen before, if it is still one of the rungs."""
    if memory is None or not memory.is_file():
        return None
    try:
        chosen = GpuProfile.model_validate_json(memory.read_bytes())
    except (OSError, ValidationError) as error:
        logger.warning("%s cannot be read, so the profile is chosen anew: %s", memory, error)
        return None
    return chosen if any(_is_made_from(profile, chosen) for profile in possible) else None


def _is_made_from(profile: GpuProfile, chosen: GpuProfile) -> bool:
    """Whether the choice is that profile, but for what is decided by the machine."""
    decided = {"chosen_because"} if profile.num_gpus else {"chosen_because", "num_threads"}
    return chosen.model_dump(exclude=decided) == profile.model_dump(exclude=decided)


def _remember(memory: Path, profile: GpuProfile) -> None:
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(memory, profile.model_dump_json())
    except OSError as error:
        logger.warning("%s cannot be written; a retry of this run may choose another profile: %s", memory, error)
