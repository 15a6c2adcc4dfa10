"""Compare what Docker and this host offer with what a run needs: one finding per requirement; starts nothing.

The findings about GPUs are in `tasks/checks/hardware.py`.
"""

import errno
import math
import os
import resource
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import psutil

from containers.contracts.hardware import GIB, UNLIMITED, GpuProfile
from containers.contracts.records import CheckFinding
from containers.contracts.registries import RuntimeName, capabilities
from containers.formatting import one_line, short_digest, size
from containers.host.control_groups import Memory, available_cpus
from containers.launch.docker.state import DockerState, ImageState
from containers.launch.host_limits import machine_memory, memory_for, memory_limit, shared_memory

Verdict = Literal["ok", "warning", "failure"]
_GPU_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
_SHOWN_CHARACTERS = 100


def docker_findings(
    docker: DockerState, image: ImageState, profile: GpuProfile, *, stages_digest: str
) -> tuple[CheckFinding, ...]:
    """Findings on daemon, NVIDIA runtime and stage image, for a run that uses Docker.

    Args:
        stages_digest: of the sources that the orchestrator has; the image must have been built from the same.
    """
    wanted = "a daemon that answers"
    if not docker.answers:
        return (_row("Docker daemon", docker.problem, wanted, "failure", docker.advice),)
    daemon = _row("Docker daemon", f"version {docker.version}", wanted, "ok")
    gpus = (_nvidia_runtime(docker),) if profile.num_gpus else ()
    return (daemon, *gpus, *_image(image, stages_digest=stages_digest))


def _nvidia_runtime(docker: DockerState) -> CheckFinding:
    advice = "Install the NVIDIA container toolkit; `nvidia-ctk runtime configure --runtime=docker`; restart Docker."
    wanted = "registered with Docker, or CDI"
    if docker.hands_out_gpus:
        return _row("NVIDIA runtime", "registered" if "nvidia" in docker.runtimes else "by CDI", wanted, "ok")
    if any(shutil.which(hook) for hook in _GPU_HOOKS):
        return _row("NVIDIA runtime", "not registered, but its hook is installed", wanted, "warning", advice)
    found = f"not registered; there are {', '.join(docker.runtimes) or 'none'}"
    return _row("NVIDIA runtime", found, wanted, "failure", advice)


def _image(image: ImageState, *, stages_digest: str) -> tuple[CheckFinding, ...]:
    wanted = "a stage image on this machine"
    lack, advice = image.lack(stages_digest=stages_digest)
    if not image.stages_digest:
        return (_row("stage image", f"{image.name} {lack}", wanted, "failure", advice),)
    built, present = short_digest(image.stages_digest), short_digest(stages_digest)
    return (
        _row("stage image", f"{image.name} {short_digest(image.digest)}", wanted, "ok"),
        _row("stage programs in the image", built, present, "failure" if lack else "ok", advice),
    )


def shm_finding(
    profile: GpuProfile, *, runtime: RuntimeName, machine_bytes: int = 0, can_limit: bool = True
) -> CheckFinding:
    """Finding on shared memory: Docker makes its own, which must fit into memory; a process uses the host's.

    Args:
        machine_bytes: memory of the machine that runs containers; 0 takes this host's.
        can_limit: whether its Docker daemon can limit memory.
    """
    wanted = int(profile.shm_size_gib * GIB)
    if not capabilities(runtime).enforces_shm:
        return _host_shm(wanted)
    memory = machine_bytes or machine_memory(0)
    limit = memory_limit(profile, machine_bytes=memory, can_limit=can_limit)
    room = min(memory, limit.limit_bytes or memory)
    fits = wanted < room
    advice = f"Shared memory counts as memory: lower shm_size_gib, or raise host_memory_gib ({limit.reason})."
    return _row(
        "/dev/shm",  # noqa: S108 - a mount, not a file
        f"Docker makes it; {size(room)} of memory hold it",
        size(wanted),
        "ok" if fits else "failure",
        "" if fits else advice,
    )


def _host_shm(wanted: int) -> CheckFinding:
    total, free = shared_memory()
    found = f"{size(total)}, {size(free)} free"
    if total < wanted:
        advice = f"`mount -o remount,size={math.ceil(wanted / 1024**2)}M /dev/shm`, start the container with "
        advice += "--shm-size, the pod with a volume in memory (docs/kubernetes.md), or lower shm_size_gib."
        verdict: Verdict = "failure"
    elif free < wanted:
        verdict, advice = "warning", "Other programs fill it: `ls -la /dev/shm` shows files of dead processes."
    else:
        verdict, advice = "ok", ""
    return _row("/dev/shm", found, size(wanted), verdict, advice)  # noqa: S108


def memlock_finding(profile: GpuProfile, *, runtime: RuntimeName) -> CheckFinding:
    """Finding on the limit of locked memory, which NCCL needs for its buffers; only a process inherits it."""
    wanted = {UNLIMITED: "unlimited", 0: "any"}.get(profile.memlock_bytes) or size(profile.memlock_bytes)
    if not profile.num_gpus or capabilities(runtime).confines:
        why = "not needed on CPU" if not profile.num_gpus else "set by Docker"
        return _row("ulimit memlock", why, wanted if profile.num_gpus else "any", "ok")
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = soft == resource.RLIM_INFINITY
    enough = unlimited or (profile.memlock_bytes != UNLIMITED and soft >= profile.memlock_bytes)
    return _row(
        "ulimit memlock",
        "unlimited" if unlimited else size(soft),
        wanted,
        "ok" if enough else "warning",
        "" if enough else "`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the service; NCCL may fail without.",
    )


def memory_finding(
    profile: GpuProfile,
    *,
    needed_bytes: int,
    runtime: RuntimeName,
    machine_bytes: int = 0,
    can_limit: bool = True,
    memory: Memory | None = None,
) -> CheckFinding:
    """Compare free memory and the stage's memory limit with what the run needs, shared memory included.

    Args:
        needed_bytes: estimate for the largest stage; 0 where there is none.
        machine_bytes: memory of the machine that runs containers; 0 takes this host's.
        can_limit: whether its Docker daemon can limit memory.
        memory: what this host or control group has; None measures it.
    """
    memory = memory or memory_for(profile, runtime)
    machine_bytes = machine_bytes or memory.total_bytes
    limit = memory_limit(profile, machine_bytes=machine_bytes, runtime=runtime, can_limit=can_limit)
    found = f"{size(memory.available_bytes)} free of {size(memory.total_bytes)}; {limit.reason}"
    wanted = f"{size(needed_bytes)} (estimated)" if needed_bytes else "not estimated"
    if needed_bytes > memory.available_bytes:
        missing = size(needed_bytes - memory.available_bytes)
        advice = f"{missing} are missing: end other programs, choose a smaller model or a larger machine."
        return _row("memory", found, wanted, "failure", advice)
    if limit.limit_bytes and not capabilities(runtime).enforces_memory:
        use = f"`systemd-run --user --scope -p MemoryMax={limit.limit_bytes} rlhf …`"
        return _row("memory", found, wanted, "warning", f"Use Docker, or a control group: {use}.")
    if limit.limit_bytes and needed_bytes > limit.limit_bytes:
        advice = (
            f"Set host_memory_gib in the GPU profile to {math.ceil(needed_bytes / GIB)}, or choose a smaller model."
        )
        return _row("memory", f"a limit of {size(limit.limit_bytes)}; {limit.reason}", wanted, "failure", advice)
    if limit.limit_bytes > memory.total_bytes:
        advice = f"host_memory_gib {profile.host_memory_gib} is more than there is, so it protects nothing."
        return _row("memory", found, wanted, "warning", advice)
    return _row("memory", found, wanted, "ok")


def cpu_finding(profile: GpuProfile) -> CheckFinding:
    """Compare the CPUs that this process may use with ranks × threads."""
    found, wanted = available_cpus(), profile.num_processes * profile.num_threads
    enough = found >= wanted
    return _row(
        "CPUs",
        f"{found:g}",
        f"{wanted} (ranks {profile.num_processes} × threads {profile.num_threads})",
        "ok" if enough else "warning",
        "" if enough else "Threads that wait for a CPU slow all others down: lower num_threads in the GPU profile.",
    )


def disk_finding(output_dir: Path, *, needed_bytes: int) -> CheckFinding:
    """Finding on free space and write permission in the output folder, which need not exist yet."""
    place = output_dir.absolute()
    try:
        while not place.exists():
            place = place.parent
    except OSError as error:
        too_long = error.errno == errno.ENAMETOOLONG
        advice = f"Set run.output_dir to {'a shorter path' if too_long else 'a folder that this user can reach'}."
        return _row(
            "disk", f"{one_line(str(place), _SHOWN_CHARACTERS)}: {error.strerror}", "a folder", "failure", advice
        )
    if not place.is_dir():
        advice = "Move the file away, or set run.output_dir to another folder."
        return _row("disk", f"{place} is a file", "a folder", "failure", advice)
    if not os.access(place, os.W_OK | os.X_OK):
        advice = "Change its owner, or set run.output_dir to another folder."
        return _row("disk", f"{place} cannot be written by user {os.getuid()}", "writable", "failure", advice)
    free = shutil.disk_usage(place).free
    found, wanted = f"{size(free)} free at {place}", f"{size(needed_bytes)} (estimated)"
    if free < needed_bytes:
        advice = f"{size(needed_bytes - free)} are missing: free them, set run.output_dir to another disk, or lower "
        return _row("disk", found, wanted, "failure", advice + "schedule.save_total_limit.")
    if free < 2 * needed_bytes:
        return _row("disk", found, wanted, "warning", "Enough for one run as estimated, with little to spare.")
    return _row("disk", found, wanted, "ok")


def network_finding(
    profile: GpuProfile, *, runtime: RuntimeName, interfaces: Collection[str] | None = None
) -> CheckFinding:
    """Finding on the network interface by which ranks find each other; NCCL needs one even within one machine.

    Args:
        interfaces: names of those that are up; None asks the host.
    """
    if profile.num_processes == 1:
        return _row("network interface", "not needed by one rank", "none", "ok")
    if capabilities(runtime).confines:
        return _row("network interface", "loopback of the container", "loopback", "ok")
    names = sorted(up_interfaces() if interfaces is None else interfaces)
    found = ", ".join(names) or "only loopback"
    asked = profile.nccl.socket_ifname
    if asked and not matching_interfaces(asked, [*names, "lo"]):
        advice = "Correct nccl.socket_ifname in the GPU profile: NCCL stops when no interface matches."
        return _row("network interface", found, f"one that matches {asked}", "failure", advice)
    advice = "" if names else "NCCL falls back to loopback, which is enough within one machine."
    return _row("network interface", found, asked or "one that is up", "ok" if names else "warning", advice)


def up_interfaces() -> tuple[str, ...]:
    """Names of the interfaces that are up and have an address, without loopback."""
    addresses = psutil.net_if_addrs()
    return tuple(
        name
        for name, stats in psutil.net_if_stats().items()
        if stats.isup and name != "lo" and "loopback" not in stats.flags.split(",") and addresses.get(name)
    )


def matching_interfaces(pattern: str, names: Collection[str]) -> tuple[str, ...]:
    """The interfaces that NCCL may use under this NCCL_SOCKET_IFNAME.

    `^` excludes, `=` compares whole names, otherwise the beginning of a name is enough: `^docker0,lo`, `=eth0`, `eth`.
    """
    excluded = pattern.startswith("^")
    rest = pattern[1:] if excluded else pattern
    whole = rest.startswith("=")
    entries = [entry for entry in (rest[1:] if whole else rest).split(",") if entry]

    def listed(name: str) -> bool:
        return any(name == entry if whole else name.startswith(entry) for entry in entries)

    return tuple(name for name in names if listed(name) != excluded)


def _row(name: str, found: str, wanted: str, verdict: Verdict, advice: str = "") -> CheckFinding:
    return CheckFinding(name=name, found=found, wanted=wanted, verdict=verdict, advice=advice)
