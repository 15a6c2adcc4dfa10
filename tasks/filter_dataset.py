"""filter_dataset: preference rows in, English pairs and policy prompts out."""

from pathlib import Path

from containers.contracts.names import FUNNEL_FILE
from containers.contracts.records import Funnel
from containers.contracts.spec import ArtifactRef
from containers.contracts.stage_configs import FilterDatasetConfig
from tasks.markdown import funnel_markdown
from tasks.pipeline_run import PipelineRun
from tasks.prefect_artifacts import show_stage
from tasks.prefect_naming import correct_name
from tasks.run_stage import run_stage
from tasks.source_labels import dataset_label
from tasks.sources import DatasetSource, ModelSource
from tasks.stage_inputs import filter_dataset_inputs
from tasks.stage_task import stage_task


@stage_task
def filter_dataset(
    run: PipelineRun,
    config: FilterDatasetConfig,
    dataset: DatasetSource,
    *,
    base_model: ModelSource | None,
    checked: object = None,
) -> ArtifactRef:
    """The filtered pairs; `checked` is only there so that Prefect draws the edge from check_system."""
    inputs = filter_dataset_inputs(config, dataset, base_model)
    run.dataset_origin = "; ".join(item.origin for item in inputs if item.name != "tokenizer")
    correct_name(run, dataset_label(dataset), dataset_label(dataset, digest=inputs[0].digest))
    artifact = run_stage(run, config, inputs)
    funnel = Funnel.model_validate_json((Path(artifact.path) / FUNNEL_FILE).read_bytes())
    show_stage(run, artifact.stage, funnel_markdown(funnel), description="What became of every row")
    return artifact
