"""What a stage must find inside before it imports torch, from its GPU profile."""

from typing import Literal

from containers.contracts.hardware import GIB, GpuProfile, RequiredContract
from containers.launch.docker_state import read_docker
from containers.launch.environment import stage_environment
from containers.launch.memory_limit import machine_memory, memory_limit


def required_contract(
    profile: GpuProfile, *, seed: int, stages_digest: str, runtime: Literal["docker", "process"]
) -> RequiredContract:
    """The demands that the stage compares with what it measures.

    Args:
        runtime: Docker enforces limits; the process runtime can only check them.
    """
    in_docker = runtime == "docker"
    limit = memory_limit(profile, machine_bytes=0, runtime=runtime)
    if in_docker and profile.host_memory_gib is None:
        docker = read_docker()
        machine_bytes = machine_memory(docker.memory_bytes)
        limit = memory_limit(profile, machine_bytes=machine_bytes, can_limit=docker.limits_memory)
    return RequiredContract(
        shm_size_bytes=int(profile.shm_size_gib * GIB),
        memlock_bytes=profile.memlock_bytes,
        stack_bytes=profile.stack_bytes,
        num_gpus=profile.num_gpus,
        host_memory_bytes=limit.limit_bytes,
        host_memory_reason=limit.reason,
        environment=stage_environment(profile, seed=seed),
        stages_digest=stages_digest,
        enforced=in_docker,
    )
