"""What a stage must find inside before it imports torch, from its GPU profile."""

from containers.contracts.hardware import GIB, GpuProfile, RequiredContract
from containers.launch.environment import stage_environment


def required_contract(profile: GpuProfile, *, seed: int, stages_digest: str, enforced: bool) -> RequiredContract:
    """The demands that the stage compares with what it measures.

    Args:
        enforced: whether the runtime can enforce limits (Docker), and does not only check them.
    """
    return RequiredContract(
        shm_size_bytes=int(profile.shm_size_gib * GIB),
        memlock_bytes=profile.memlock_bytes,
        stack_bytes=profile.stack_bytes,
        num_gpus=profile.num_gpus,
        environment=stage_environment(profile, seed=seed),
        stages_digest=stages_digest,
        enforced=enforced,
    )
