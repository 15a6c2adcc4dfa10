"""filter_dataset: preference rows in, English pairs and policy prompts out."""

from collections.abc import Sequence
from pathlib import Path

from containers.contracts.configs.stages import FilterDatasetConfig, SuiteFile
from containers.contracts.names import FUNNEL_FILE
from containers.contracts.records import Funnel
from containers.contracts.spec import ArtifactRef
from tasks.pages.funnel import funnel_markdown
from tasks.pipeline.inputs import filter_dataset_inputs, whole_filter_config
from tasks.pipeline.run_stage import run_stage
from tasks.prefect_sync.artifacts import show_stage
from tasks.prefect_sync.naming import correct_name
from tasks.run.state import PipelineRun
from tasks.sources.labels import dataset_label
from tasks.sources.resolve import DatasetSource, ModelSource
from tasks.stage_task import stage_task

# Inputs that hold rows, in a mixture with a name behind it.
_ROWS = ("train_data", "validation_data")


@stage_task
def filter_dataset(
    run: PipelineRun,
    config: FilterDatasetConfig,
    dataset: DatasetSource,
    *,
    base_model: ModelSource | None,
    suites: Sequence[SuiteFile] = (),
    checked: object = None,
) -> ArtifactRef:
    """The filtered pairs.

    Args:
        suites: what the reward model will be judged by, so that it does not train on it.
        checked: only there so that Prefect draws the edge from check_system.
    """
    inputs = filter_dataset_inputs(config, dataset, base_model, suites)
    run.dataset_origin = "; ".join(item.origin for item in inputs if item.name.startswith(_ROWS))
    correct_name(run, dataset_label(dataset), dataset_label(dataset, digest=inputs[0].digest))
    artifact = run_stage(run, whole_filter_config(config, dataset, suites), inputs)
    funnel = Funnel.model_validate_json((Path(artifact.path) / FUNNEL_FILE).read_bytes())
    show_stage(run, artifact.stage, funnel_markdown(funnel), description="What became of every row")
    return artifact
