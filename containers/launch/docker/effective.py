"""Compare the container that the daemon made with the one that was requested; pure.

A daemon may alter a request (its own `ipc` mode drops the size of /dev/shm), and an image may declare volumes.
The comparison happens before the program starts; the program measures again inside.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from containers.contracts.base import Frozen
from containers.contracts.hardware import ContractFinding
from containers.formatting import short_digest, size

# Beside spec.json, where the stage cannot write.
CONTAINER_FILE = "container.json"


class ContainerFindings(Frozen):
    """`container.json` of an attempt: every limit of the container, as the daemon reports it."""

    findings: tuple[ContractFinding, ...]

    @property
    def drift(self) -> str:
        """One sentence per unmet demand; empty where all are met."""
        return " ".join(
            f"{finding.name}: {finding.wanted} was asked for, the container has {finding.found}."
            for finding in self.findings
            if finding.verdict == "drift"
        )


def container_findings(attrs: Mapping[str, Any], arguments: Mapping[str, Any]) -> ContainerFindings:
    """Compare what `docker inspect` shows with the arguments of `docker create`."""
    return ContainerFindings(
        findings=tuple(
            ContractFinding(name=name, wanted=wanted, found=found, verdict="ok" if wanted == found else "drift")
            for name, wanted, found in _compared(attrs, arguments)
        )
    )


def _compared(attrs: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, wanted and found as text."""
    host, config = attrs.get("HostConfig") or {}, attrs.get("Config") or {}
    yield "image", short_digest(str(arguments["image"])), short_digest(str(attrs.get("Image", "")))
    yield "user", str(arguments["user"]), str(config.get("User", ""))
    yield "/dev/shm", size(arguments["shm_size"]), size(int(host.get("ShmSize") or 0))  # noqa: S108 - a mount
    yield from _limits(host, arguments)
    yield "capabilities", "none", _capabilities(host)
    forbids_privileges = {"no-new-privileges", "no-new-privileges:true"} & set(map(str, host.get("SecurityOpt") or ()))
    yield "new privileges", "none", "none" if forbids_privileges else "possible"
    yield "root folder", "read-only", "read-only" if host.get("ReadonlyRootfs") else "writable"
    yield "network", str(arguments["network_mode"]), str(host.get("NetworkMode", ""))
    yield "shared with the host", "nothing", _shared_namespaces(host)
    yield "processes", str(arguments["pids_limit"]), str(host.get("PidsLimit") or "unlimited")
    wanted_memory = int(arguments.get("mem_limit") or 0)
    yield "memory", _memory(wanted_memory), _memory(int(host.get("Memory") or 0))
    yield "GPUs", _gpus(arguments.get("device_requests")), _gpus(host.get("DeviceRequests"))
    yield "mounts", *_mounts(attrs, arguments)
    given = dict(item.partition("=")[::2] for item in config.get("Env") or ())
    for name, value in sorted(arguments["environment"].items()):
        yield f"variable {name}", value, given.get(name, "not set")


def _limits(host: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    found = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host.get("Ulimits") or ()}
    for limit in arguments["ulimits"]:
        wanted = (limit["Soft"], limit["Hard"])
        yield f"ulimit {limit['Name']}", _limit(wanted), _limit(found.get(limit["Name"]))


def _limit(values: tuple[int, int] | None) -> str:
    if values is None:
        return "the daemon's own"
    return " to ".join("unlimited" if value == -1 else f"{value:,}" for value in dict.fromkeys(values))


def _capabilities(host: Mapping[str, Any]) -> str:
    if host.get("Privileged"):
        return "all (privileged)"
    dropped = {str(name).upper().removeprefix("CAP_") for name in host.get("CapDrop") or ()}
    added = ", ".join(host.get("CapAdd") or ())
    if "ALL" not in dropped:
        return "the daemon's own"
    return added or "none"


def _shared_namespaces(host: Mapping[str, Any]) -> str:
    """Namespaces shared with the host; with its `ipc`, /dev/shm has the host's size, whatever was requested."""
    names = {"IpcMode": "ipc", "PidMode": "pid", "UTSMode": "uts"}
    shared = [name for key, name in names.items() if str(host.get(key, "")) == "host"]
    return ", ".join(shared) or "nothing"


def _memory(limit_bytes: int) -> str:
    return size(limit_bytes) if limit_bytes else "no limit"


def _gpus(requests: Any) -> str:
    parts = [", ".join(request.get("DeviceIDs") or ()) or f"any {request.get('Count')}" for request in requests or ()]
    return "; ".join(parts) or "none"


def _mounts(attrs: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[str, str]:
    """Wanted and found mount points, each with whether it is writable; a volume of the image is a difference."""
    wanted = {mount["Target"]: not mount.get("ReadOnly") for mount in arguments["mounts"]}
    found = {mount["Destination"]: bool(mount.get("RW")) for mount in attrs.get("Mounts") or ()}
    return _mounts_text(wanted), _mounts_text(found)


def _mounts_text(mounts: Mapping[str, bool]) -> str:
    return ", ".join(f"{path} ({'writable' if writable else 'read-only'})" for path, writable in sorted(mounts.items()))
