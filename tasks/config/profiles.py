"""Read a profile file that names other profiles, as `auto` does, and choose one of them."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from containers.contracts.base import Frozen
from containers.contracts.configs.train_policy import TrainPolicyConfig
from containers.contracts.digests import write_atomically
from containers.contracts.hardware import GpuProfile
from containers.contracts.schedule import ScheduleError, plan_batch
from containers.launch.gpus.choice import NoProfileFitsError, choose_profile
from containers.launch.gpus.inventory import read_gpus
from containers.launch.gpus.leases import lease_folder, leased_gpus
from containers.launch.gpus.verdicts import visible_gpus
from containers.launch.host_limits import usable_cores
from tasks.config.errors import ConfigError, mistakes_of, near_match
from tasks.config.yaml_reader import read_yaml_file

logger = logging.getLogger(__name__)

# Prefect's runner sets it in the process of a flow run, also when the run is retried or resumed.
_FLOW_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"


def auto_profile(
    ladder: Sequence[GpuProfile], without_gpu: GpuProfile, *, divides: Callable[[GpuProfile], str]
) -> GpuProfile:
    """Choose the profile that fits the free GPUs; `chosen_because` says why.

    Args:
        ladder: profiles, the most wanted first.
        without_gpu: for a machine that has no GPU.
        divides: why the run's batches cannot be divided over a profile's ranks; empty if they can.

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
        leased=leased_gpus(report.uuids, folder=lease_folder()),
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
    """File with the choice of the current flow run; None outside one."""
    flow_run = os.environ.get(_FLOW_RUN_VARIABLE, "")
    return lease_folder() / "auto" / f"{flow_run}.json" if flow_run.replace("-", "").isalnum() else None


def _remembered(memory: Path | None, possible: Sequence[GpuProfile]) -> GpuProfile | None:
    """The earlier choice, if it is still one of the ladder's profiles."""
    if memory is None or not memory.is_file():
        return None
    try:
        chosen = GpuProfile.model_validate_json(memory.read_bytes())
    except (OSError, ValidationError) as error:
        logger.warning("%s cannot be read, so the profile is chosen anew: %s", memory, error)
        return None
    return chosen if any(_is_made_from(profile, chosen) for profile in possible) else None


def _is_made_from(profile: GpuProfile, chosen: GpuProfile) -> bool:
    """Whether the choice is that profile, except for the fields that the machine decides."""
    decided = {"chosen_because"} if profile.num_gpus else {"chosen_because", "num_threads"}
    return chosen.model_dump(exclude=decided) == profile.model_dump(exclude=decided)


def _remember(memory: Path, profile: GpuProfile) -> None:
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(memory, profile.model_dump_json())
    except OSError as error:
        logger.warning("%s cannot be written; a retry of this run may choose another profile: %s", memory, error)


_TRAININGS = ("train_sft", "train_reward_model", "train_dpo", "train_policy")


class ProfileLadder(Frozen):
    """Names of profiles, the most wanted first, and the one for a machine without GPU."""

    ladder: tuple[str, ...] = Field(min_length=1)
    without_gpu: str


def is_ladder(tree: Mapping[str, Any]) -> bool:
    """Whether the file names profiles instead of being one."""
    return "ladder" in tree


def profile_of_ladder(tree: Mapping[str, Any], files: Mapping[str, Path], *, run: Mapping[str, Any]) -> dict[str, Any]:
    """The profile that fits this machine and the run, as the tree of a profile file.

    Args:
        tree: of the file with the ladder.
        files: name → file of every profile.
        run: the run's configuration, not yet checked; its global batches count.

    Raises:
        ConfigError: a name of the ladder is no profile, or none fits.
    """
    try:
        ladder = ProfileLadder.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("; ".join(str(mistake) for mistake in mistakes_of(error, ProfileLadder))) from error
    profiles = [_profile(name, files) for name in ladder.ladder]
    try:
        chosen = auto_profile(
            profiles, _profile(ladder.without_gpu, files), divides=lambda profile: _indivisible(run, profile)
        )
    except NoProfileFitsError as error:
        raise ConfigError(str(error)) from error
    return chosen.model_dump(mode="json")


def _profile(name: str, files: Mapping[str, Path]) -> GpuProfile:
    path = files.get(name)
    if path is None:
        raise ConfigError(f"its ladder names `{name}`: no such profile. {near_match(name, sorted(files))}".rstrip())
    try:
        return GpuProfile.model_validate(read_yaml_file(path, shown=str(path)))
    except ValidationError as error:
        raise ConfigError(f"{path}: {'; '.join(str(item) for item in mistakes_of(error, GpuProfile))}") from error


def _indivisible(run: Mapping[str, Any], profile: GpuProfile) -> str:
    """Why a global batch of the run cannot be divided over the profile's ranks; empty if all can."""
    default = TrainPolicyConfig.model_fields["num_generations"].default
    for section in _TRAININGS:
        training = run.get(section)
        if not isinstance(training, dict):
            continue
        size, for_vllm = training.get("global_batch_size"), training.get("vllm_gpus", 0)
        for_vllm = for_vllm if isinstance(for_vllm, int) and for_vllm > 0 and section == "train_policy" else 0
        ranks = profile.num_processes - for_vllm
        if ranks < 1:
            return f"{section}: vllm_gpus {for_vllm} leaves no GPU for a rank"
        # A profile's own default divides over its GPUs, but not over fewer ranks.
        if size is None and for_vllm:
            size = profile.default_global_batch_size
        if not isinstance(size, int) or size < 1:
            continue
        together = training.get("num_generations", default) if section == "train_policy" else 1
        trained_by = profile.model_copy(update={"num_processes": ranks})
        try:
            plan_batch(size, trained_by, multiple_of=together if isinstance(together, int) and together > 0 else 1)
        except ScheduleError as error:
            return f"{section}: {str(error).rstrip('.')}"
    return ""
