"""What a run asks of a stage: its identity and key, computed in one place for run, plan and retraining."""

from collections.abc import Sequence

from containers.contracts.configs.stages import StageConfig
from containers.contracts.identity import config_profile, identity_key, stage_batch, stage_identity
from containers.contracts.spec import StageInput
from tasks.config.run import RunConfig
from tasks.run.runtime import CodeIdentity
from tasks.store.history import StageMemory, stage_memory


def asked_of(
    run: RunConfig, config: StageConfig, inputs: Sequence[StageInput], *, code: CodeIdentity, run_id: str = ""
) -> StageMemory:
    """The stage as it is asked for now.

    Raises:
        DaemonUnreachableError: the stage image is to be asked what it holds, and no daemon answers.
        ScheduleError: its batch cannot be divided over the ranks that it has.
    """
    program = code.program(config)
    identity = stage_identity(
        config,
        seed=run.run.seed,
        inputs=inputs,
        code_digest=program.digest,
        profile=config_profile(run.gpu_profile, config),
        batch=stage_batch(config, run.gpu_profile),
    )
    return stage_memory(identity, key=identity_key(identity), inputs=tuple(inputs), program=program, run_id=run_id)
