"""Rows of the system check about GPUs: which the run would use, who has them, why this profile, stray variables."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from containers.contracts.hardware import GpuProfile
from containers.contracts.records import CheckFinding
from containers.contracts.registries import RuntimeName
from containers.contracts.variables import hardware_variables, refuse_unknown
from containers.launch.gpus.findings import gpu_findings
from containers.launch.gpus.inventory import GpuReport, read_gpus
from containers.launch.gpus.leases import lease_folder, leased_gpus
from tasks.pipeline.reap import processes_to_take_over


def gpu_rows(profile: GpuProfile, runtime: RuntimeName, *, store_dir: Path) -> Iterable[CheckFinding]:
    """Why `auto` took this profile, the number of GPUs, the driver, and each GPU that the run would use."""
    report = read_gpus() if profile.num_gpus else GpuReport()
    ours = processes_to_take_over(store_dir) if profile.num_gpus and runtime == "docker" else frozenset()
    return (
        *_profile_choice(profile),
        *gpu_findings(
            report,
            profile,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
            ours=ours,
            leased=leased_gpus([gpu.uuid for gpu in report.gpus], folder=lease_folder()),
        ),
    )


def _profile_choice(profile: GpuProfile) -> Iterator[CheckFinding]:
    """What `auto` took; nothing where a person named the profile."""
    if profile.chosen_because:
        yield CheckFinding(name="GPU profile", found=profile.chosen_because, wanted=profile.name, verdict="ok")


def variable_rows(environment: Mapping[str, str]) -> Iterator[CheckFinding]:
    """Variables of the shell that would steer NCCL or torch: stages do not get them, so they do nothing here."""
    found = hardware_variables(environment)
    if found:
        advice = "They reach no stage: set them in the GPU profile (`nccl`, `torch`, `environment`)."
        yield CheckFinding(
            name="variables",
            found=f"{', '.join(sorted(found))} in the environment of this program",
            wanted="none: stages get those of the GPU profile",
            verdict="warning",
            advice=" ".join([advice, *refuse_unknown(found)]),
        )
