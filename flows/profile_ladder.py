"""A profile file that names other profiles, as `auto` does: read, and brought down to one profile."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from containers.contracts.hardware import GpuProfile
from containers.contracts.stage_configs import TrainPolicyConfig
from containers.schedule import ScheduleError, plan_batch
from flows.config_errors import ConfigError, mistakes_of, near_match
from flows.yaml_reading import read_yaml_file
from tasks.auto_profile import NoProfileFitsError, auto_profile

_TRAININGS = ("train_sft", "train_reward_model", "train_policy")


class ProfileLadder(BaseModel):
    """Names of profiles, the most wanted first, and the one for a machine without GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
        ConfigError: a rung is no profile, or no rung fits.
    """
    try:
        ladder = ProfileLadder.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("; ".join(str(mistake) for mistake in mistakes_of(error, ProfileLadder))) from error
    rungs = [_profile(name, files) for name in ladder.ladder]
    try:
        chosen = auto_profile(
            rungs, _profile(ladder.without_gpu, files), divides=lambda profile: _indivisible(run, profile)
        )
    except NoProfileFitsError as error:
        raise ConfigError(str(error)) from error
    return chosen.model_dump(mode="json")


def _profile(name: str, files: Mapping[str, Path]) -> GpuProfile:
    path = files.get(name)
    if path is None:
        raise ConfigError(f"its rung `{name}`: no such profile. {near_match(name, sorted(files))}".rstrip())
    try:
        return GpuProfile.model_validate(read_yaml_file(path, shown=str(path)))
    except ValidationError as error:
        raise ConfigError(f"{path}: {'; '.join(str(item) for item in mistakes_of(error, GpuProfile))}") from error


def _indivisible(run: Mapping[str, Any], profile: GpuProfile) -> str:
    """Why a global batch that the run names cannot be cut over the profile's ranks; empty where all can."""
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
