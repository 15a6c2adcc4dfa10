"""filter_demonstrations: rows with conversations in, those to fine-tune on out, none with a prompt that judges."""

from pathlib import Path

from containers.contracts.funnel import Funnel
from containers.contracts.names import FUNNEL_FILE, StageName
from containers.contracts.spec import ArtifactRef
from containers.report.data import data_section
from tasks.pipeline.run_stage import make
from tasks.pipeline.stage_task import StageTask
from tasks.prefect_sync.artifacts import show_stage
from tasks.run.state import PipelineRun


@StageTask
def filter_demonstrations(
    run: PipelineRun, *, pairs: ArtifactRef | None = None, prompts: ArtifactRef | None = None, checked: object = None
) -> ArtifactRef:
    """The filtered demonstrations.

    Args:
        pairs: their held-out prompts judge the reward model.
        prompts: their held-out prompts judge the policy.
        checked: exists only so that Prefect draws the edge from check_system.
    """
    artifact = make(run, StageName.FILTER_DEMONSTRATIONS, pairs=pairs, prompts=prompts)
    funnel = Funnel.model_validate_json((Path(artifact.path) / FUNNEL_FILE).read_bytes())
    show_stage(run, artifact.stage, data_section(funnel), description="What became of every demonstration")
    return artifact
