"""Make one stage of the table from what was made before it."""

from containers.contracts.names import StageName
from containers.contracts.records import GateVerdict
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.pipeline.run_stage import run_stage
from tasks.pipeline.stages import BY_NAME, required_config
from tasks.run.state import PipelineRun


def make(
    run: PipelineRun,
    stage: StageName,
    *,
    unkeyed: tuple[StageInput, ...] = (),
    **made: ArtifactRef | StageInput | GateVerdict,
) -> ArtifactRef:
    """The stage's verified artifact; see `run_stage`.

    Args:
        unkeyed: inputs that the program only checks, and that do not count in its key.
        made: by role, what the stage reads.

    Raises:
        StageFailedError: the stage failed.
        LookupError: it takes no part in this run.
    """
    config = required_config(run.config, stage)
    return run_stage(run, config, (*BY_NAME[stage].inputs(run.config, made, True), *unkeyed))
