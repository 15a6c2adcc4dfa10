"""Read the GPUs of this machine: by NVML, else by nvidia-smi; every unusable answer becomes a reason."""

import contextlib
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from containers.launch.gpus.cards import GpuReport, GpuState
from containers.launch.gpus.kernel_log import KERNEL_LOG, bus_key, xid_errors
from containers.launch.gpus.nvidia_smi import read_by_smi, sample_by_smi
from containers.launch.gpus.nvml import NoNvmlError, read_by_nvml, sample_by_nvml

_UNIFIED_MEMORY = Path("/dev/nvidia-uvm")
_HELPER_LIMIT_S = 60


def read_gpus(*, timeout_s: float = 60, kernel_log: Path = KERNEL_LOG) -> GpuReport:
    """The GPUs that the driver reports, or the reason why its answer is unusable; never raises, never hangs.

    A sick card is one of them (`Gpu.sick`): the others can be used.

    Args:
        timeout_s: for each question; then what was asked is killed. A driver that is not kept loaded starts each GPU at
            each question, which takes one to three seconds per GPU.
        kernel_log: file with the driver's Xid errors.
    """
    try:
        report = read_by_nvml(timeout_s=timeout_s)
    except NoNvmlError:
        report = read_by_smi(timeout_s=timeout_s)
    errors = xid_errors(kernel_log) if report.gpus else {}
    if not errors:
        return report
    return replace(
        report,
        gpus=tuple(
            replace(gpu, health=replace(gpu.health, xids=errors.get(bus_key(gpu.bus), ()))) if gpu.bus else gpu
            for gpu in report.gpus
        ),
    )


def read_states(*, timeout_s: float = 10) -> tuple[GpuState, ...]:
    """One sample of each GPU; empty where the driver gives none. Never raises, never hangs."""
    try:
        return sample_by_nvml(timeout_s=timeout_s)
    except NoNvmlError:
        return sample_by_smi(timeout_s=timeout_s)


def make_device_nodes() -> None:
    """Make /dev/nvidia-uvm with the driver's helper if it is missing: without it CUDA finds no GPU.

    CUDA starts that helper itself, but set-uid root has no effect in the user namespace of a stage whose user is not
    root. So the helper is started before. Neither NVML nor nvidia-smi makes this node.
    """
    helper = shutil.which("nvidia-modprobe")
    if os.geteuid() == 0 or helper is None or _UNIFIED_MEMORY.exists():
        return
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([helper, "-u", "-c=0"], check=False, timeout=_HELPER_LIMIT_S)
