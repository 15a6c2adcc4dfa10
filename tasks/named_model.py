"""The model that a run names: fetched from the hub at a commit, or taken from a local folder."""

from containers.contracts.spec import StageInput
from tasks.pipeline_run import PipelineRun
from tasks.sources import ModelSource
from tasks.stage_inputs import named_model_input


def named_model(run: PipelineRun, source: ModelSource | None) -> StageInput:
    """The model as input of the next stage.

    Raises:
        SourceError: it cannot be had; says why and what to do.
        ValueError: the run names no model; `RunConfig` refuses that before.
    """
    if source is None:
        raise ValueError("The run names neither base_model nor build_base_model.")
    model = named_model_input(source)
    run.base_model_origin = model.origin
    return model
