"""A daemon that makes another container than it was asked for must be caught before the stage's program starts."""

import copy
from pathlib import Path
from typing import Any

import pytest

from containers.launch.arguments import docker_arguments
from containers.launch.docker.effective import container_findings
from tests.unit.factories.launch_factory import make_input, make_launch, make_profile, make_spec

IMAGE = "sha256:" + "c3" * 32


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "pairs").mkdir()
    profile = make_profile(shm_size_gib=0.25, host_memory_gib=0.5)
    launch = make_launch(tmp_path, make_spec(profile=profile, inputs=(make_input("pairs", tmp_path / "pairs"),)))
    return docker_arguments(launch, image_id=IMAGE, user="1000:1000", labels={})


def _inspected(arguments: dict[str, Any]) -> dict[str, Any]:
    """As Docker 20.10.24 shows the container that these arguments make: the parts that are compared."""
    return {
        "Image": IMAGE,
        "Config": {
            "User": "1000:1000",
            "Env": [*(f"{name}={value}" for name, value in arguments["environment"].items()), "PATH=/usr/bin:/bin"],
        },
        "Mounts": [
            {"Type": "bind", "Source": mount["Source"], "Destination": mount["Target"], "RW": not mount["ReadOnly"]}
            for mount in arguments["mounts"]
        ],
        "HostConfig": {
            "ShmSize": 268435456,
            "Ulimits": [
                {"Name": "memlock", "Hard": 8388608, "Soft": 8388608},
                {"Name": "stack", "Hard": 8388608, "Soft": 8388608},
                {"Name": "nofile", "Hard": 16384, "Soft": 16384},
            ],
            "CapDrop": ["ALL"],
            "CapAdd": None,
            "SecurityOpt": ["no-new-privileges:true"],
            "ReadonlyRootfs": True,
            "NetworkMode": "none",
            "IpcMode": "private",
            "PidMode": "",
            "UTSMode": "",
            "Privileged": False,
            "PidsLimit": 4096,
            "Memory": 536870912,
            "MemorySwap": 536870912,
            "DeviceRequests": None,
        },
    }


def test_the_container_that_was_asked_for_has_no_drift(arguments: dict[str, Any]) -> None:
    found = container_findings(_inspected(arguments), arguments)
    assert found.drift == ""
    assert {"image", "user", "/dev/shm", "ulimit memlock", "capabilities", "mounts", "GPUs", "memory"} < {
        finding.name for finding in found.findings
    }


@pytest.mark.parametrize(
    ("changes", "drift"),
    [
        ({"IpcMode": "host"}, "shared with the host: nothing was asked for, the container has ipc."),
        ({"ShmSize": 67108864}, "/dev/shm: 256 MiB was asked for, the container has 64.0 MiB."),
        ({"Ulimits": None}, "ulimit memlock: 8,388,608 was asked for, the container has the daemon's own."),
        ({"CapDrop": None}, "capabilities: none was asked for, the container has the daemon's own."),
        ({"CapAdd": ["SYS_ADMIN"]}, "capabilities: none was asked for, the container has SYS_ADMIN."),
        ({"Privileged": True}, "capabilities: none was asked for, the container has all (privileged)."),
        (
            {"SecurityOpt": ["no-new-privileges:false"]},
            "new privileges: none was asked for, the container has possible.",
        ),
        ({"ReadonlyRootfs": False}, "root folder: read-only was asked for, the container has writable."),
        ({"NetworkMode": "bridge"}, "network: none was asked for, the container has bridge."),
        ({"Memory": 0}, "memory: 512 MiB was asked for, the container has no limit."),
        ({"PidsLimit": None}, "processes: 4096 was asked for, the container has unlimited."),
    ],
)
def test_each_limit_that_the_daemon_changed_is_named(
    arguments: dict[str, Any], changes: dict[str, Any], drift: str
) -> None:
    attrs = _inspected(arguments)
    attrs["HostConfig"].update(changes)
    assert drift in container_findings(attrs, arguments).drift


def test_a_volume_that_the_image_brings_is_a_second_place_to_write(arguments: dict[str, Any]) -> None:
    attrs = _inspected(arguments)
    attrs["Mounts"].append({"Type": "volume", "Destination": "/cache", "RW": True})
    assert "the container has /cache (writable), /rlhf/inputs/pairs (read-only)" in (
        container_findings(attrs, arguments).drift
    )


def test_another_image_user_or_variable_is_drift(arguments: dict[str, Any]) -> None:
    attrs = _inspected(arguments)
    attrs["Image"], attrs["Config"]["User"] = "sha256:" + "ee" * 32, ""
    attrs["Config"]["Env"] = [item for item in attrs["Config"]["Env"] if not item.startswith("HF_HUB_OFFLINE")]
    drift = container_findings(attrs, arguments).drift
    for part in ("image: sha256:c3", "user: 1000:1000 was asked for", "variable HF_HUB_OFFLINE: 1 was asked for"):
        assert part in drift


def test_other_gpus_than_the_leased_ones_are_drift(tmp_path: Path) -> None:
    profile = make_profile(num_gpus=2, num_processes=2, precision="bf16", shm_size_gib=0.25, host_memory_gib=0.5)
    launch = make_launch(tmp_path, make_spec(profile=profile), gpu_ids=("GPU-a", "GPU-b"))
    arguments = docker_arguments(launch, image_id=IMAGE, user="1000:1000", labels={})
    attrs = _inspected(arguments)
    attrs["HostConfig"]["DeviceRequests"] = copy.deepcopy(arguments["device_requests"])
    assert container_findings(attrs, arguments).drift == ""
    attrs["HostConfig"]["DeviceRequests"][0].update(DeviceIDs=None, Count=-1)
    assert container_findings(attrs, arguments).drift == ("GPUs: GPU-a, GPU-b was asked for, the container has any -1.")
