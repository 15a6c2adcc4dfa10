"""filter_dataset: preference rows in, English pairs and policy prompts out."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from containers.contracts.names import FUNNEL_FILE
from containers.contracts.records import Funnel
from containers.contracts.spec import ArtifactRef
from containers.contracts.stage_configs import FilterDatasetConfig
from tasks.markdown import funnel_markdown
from tasks.pipeline_run import PipelineRun
from tasks.prefect_artifacts import show_markdown
from tasks.run_stage import run_stage
from tasks.sources import DatasetSource, ModelSource
from tasks.stage_inputs import filter_dataset_inputs


@task(name="filter_dataset", task_run_name="filter_dataset", cache_policy=NO_CACHE, persist_result=False)
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
    artifact = run_stage(run, config, inputs)
    funnel = Funnel.model_validate_json((Path(artifact.path) / FUNNEL_FILE).read_bytes())
    show_markdown("filter-dataset", funnel_markdown(funnel), description="What became of every row")
    return artifact
