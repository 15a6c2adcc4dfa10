"""Where a profile names no limit, a container leaves the servers their share, and its death names both figures."""

from collections.abc import Callable

import pytest

from containers.contracts.hardware import GIB
from containers.contracts.outcome import FailureKind
from containers.formatting import size
from containers.launch.base import LaunchRequest, StageExit
from containers.launch.docker.effective import CONTAINER_FILE, ContainerFindings
from containers.launch.docker.state import read_docker
from containers.launch.failures.classify import classify
from containers.launch.host_limits import machine_memory, memory_limit
from tasks.run.runtime import required_contract
from tests.unit.factories.launch_factory import make_profile, make_spec

pytestmark = pytest.mark.docker

RunStage = Callable[..., tuple[StageExit, LaunchRequest]]

# Reads its limit where version 2 of control groups has it inside a container, or version 1.
SHOWS_ITS_LIMIT = """
from pathlib import Path
places = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
print("limit", next(place for place in places if place.exists()).read_text().strip())
"""
EATER = "x = []\nwhile True: x.append(bytearray(16 * 1024**2))"
SMALL_MACHINE_BYTES = GIB // 4


def test_a_container_has_what_this_machine_has_less_the_share(run: RunStage) -> None:
    profile = make_profile()
    required = required_contract(profile, seed=7, stages_digest="", runtime="docker")
    machine_bytes = machine_memory(read_docker().memory_bytes)
    assert 0 < required.host_memory_bytes < machine_bytes
    stage_exit, launch = run(SHOWS_ITS_LIMIT, profile=profile, required=required)
    told = ContainerFindings.model_validate_json((launch.spec_folder / CONTAINER_FILE).read_bytes())
    assert next(item for item in told.findings if item.name == "memory").found == size(required.host_memory_bytes)
    (line,) = [line for line in stage_exit.log_tail if line.startswith("limit ")]
    # The kernel counts in pages.
    assert required.host_memory_bytes - 4096 < int(line.split()[1]) <= required.host_memory_bytes


def test_a_stage_that_eats_memory_dies_alone_and_is_told_of_the_derived_limit(run: RunStage) -> None:
    profile = make_profile(shm_size_gib=0.0625)
    limit = memory_limit(profile, machine_bytes=SMALL_MACHINE_BYTES)
    required = make_spec(profile=profile).required.model_copy(
        update={"host_memory_bytes": limit.limit_bytes, "host_memory_reason": limit.reason}
    )
    stage_exit, launch = run(EATER, profile=profile, required=required)
    failure = classify(launch.spec, stage_exit, None)
    assert failure is not None and failure.kind is FailureKind.OUT_OF_HOST_MEMORY
    assert "host_memory_gib of profile `test` is not set; derived 128 MiB, half of the 256 MiB" in failure.message
