"""filter_dataset: preference rows in, English pairs and policy prompts out."""

from pathlib import Path

from containers.contracts.funnel import Funnel
from containers.contracts.names import FUNNEL_FILE, StageName
from containers.contracts.spec import ArtifactRef
from containers.report.data import data_section
from tasks.pipeline.run_stage import run_stage
from tasks.pipeline.stage_task import StageTask
from tasks.pipeline.stages import BY_NAME, required_config
from tasks.prefect_sync.artifacts import show_stage
from tasks.prefect_sync.naming import correct_name
from tasks.run.state import PipelineRun
from tasks.sources.labels import dataset_label

# Inputs that hold rows; in a mixture the source's name follows.
_ROWS = ("train_data", "validation_data")


@StageTask
def filter_dataset(run: PipelineRun, *, checked: object = None) -> ArtifactRef:
    """The filtered pairs.

    Args:
        checked: exists only so that Prefect draws the edge from check_system.
    """
    dataset = run.config.sources[0]
    inputs = BY_NAME[StageName.FILTER_DATASET].inputs(run.config, {}, True)
    run.dataset_origin = "; ".join(item.origin for item in inputs if item.name.startswith(_ROWS))
    correct_name(run, dataset_label(dataset), dataset_label(dataset, digest=inputs[0].digest))
    artifact = run_stage(run, required_config(run.config, StageName.FILTER_DATASET), inputs)
    funnel = Funnel.model_validate_json((Path(artifact.path) / FUNNEL_FILE).read_bytes())
    show_stage(
        run,
        artifact.stage,
        data_section(funnel, beside_prompts=run.config.prompts is not None),
        description="What became of every row",
    )
    return artifact
