"""Whether this process is shut in as a stage's container should be: seen from inside, before torch is imported."""

import os
from collections.abc import Mapping
from pathlib import Path

from containers.contracts.hardware import ContractFinding
from containers.contracts.spec import StageSpec

_MOUNTS = Path("/proc/self/mountinfo")
_INTERFACES = Path("/sys/class/net")
_IS_UP = 0x1
_ADVICE = "Something between the orchestrator and the container's start changed it; look at the Docker daemon."


def confinement_findings(
    spec: StageSpec,
    status: Mapping[str, str],
    *,
    mounts: Path = _MOUNTS,
    interfaces: Path = _INTERFACES,
) -> tuple[ContractFinding, ...]:
    """User, capabilities, privileges, mounts and network, each with a verdict.

    Args:
        status: of /proc/self/status, name to value.
        mounts, interfaces: where the kernel tells.
    """
    options = _mount_options(mounts)
    folders = [("/", "ro"), *((item.path, "ro") for item in spec.inputs), (spec.work_path, "rw")]
    return (
        _finding("user", "not root", "root" if os.geteuid() == 0 else "not root"),
        _finding("capabilities", "none", _capabilities(status)),
        _finding("new privileges", "none", "none" if status.get("NoNewPrivs") == "1" else "possible"),
        _finding("network", "loopback", _up_interfaces(interfaces)),
        *(_finding(f"mount {path}", wanted, options.get(path, "not mounted")) for path, wanted in folders),
    )


def _finding(name: str, wanted: str, found: str) -> ContractFinding:
    return ContractFinding(
        name=name, wanted=wanted, found=found, verdict="ok" if wanted == found else "drift", advice=_ADVICE
    )


def _capabilities(status: Mapping[str, str]) -> str:
    effective = status.get("CapEff", "unknown")
    return "none" if effective.strip("0") == "" else effective


def _mount_options(path: Path) -> dict[str, str]:
    """Mount point → `ro` or `rw`; the last mount on a point is the one that is seen."""
    found = {}
    try:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split(" ")
            if len(fields) > 5:
                point = fields[4].replace("\\040", " ")
                found[point] = "ro" if "ro" in fields[5].split(",") else "rw"
    except OSError:
        pass
    return found


def _up_interfaces(folder: Path) -> str:
    """Interfaces that are up; others a kernel puts into every new network namespace by itself."""
    up = []
    try:
        for interface in sorted(folder.iterdir()):
            flags = int((interface / "flags").read_text(encoding="ascii"), 16)
            if flags & _IS_UP and interface.name != "lo":
                up.append(interface.name)
    except (OSError, ValueError):
        pass
    return ", ".join(up) or "loopback"
