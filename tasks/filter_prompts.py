"""filter_prompts: rows of a prompt set in, prompts to train and judge the policy out."""

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
def filter_prompts(run: PipelineRun, *, checked: object = None) -> ArtifactRef:
    """The filtered prompts.

    Args:
        checked: exists only so that Prefect draws the edge from check_system.
    """
    artifact = make(run, StageName.FILTER_PROMPTS)
    funnel = Funnel.model_validate_json((Path(artifact.path) / FUNNEL_FILE).read_bytes())
    show_stage(run, artifact.stage, data_section(funnel), description="What became of every prompt")
    return artifact
