"""The model that a run names: fetched from the hub at a commit, or taken from a local folder."""

from containers.contracts.spec import StageInput
from tasks.pipeline_run import PipelineRun
from tasks.sources import ModelSource, hub_token, resolve_model


def named_model(run: PipelineRun, source: ModelSource | None) -> StageInput:
    """The model as input of the next stage.

    Raises:
        SourceError: it cannot be had; says why and what to do.
        ValueError: the run names no model; `RunConfig` refuses that before.
    """
    if source is None:
        raise ValueError("The run names neither base_model nor build_base_model.")
    found = resolve_model(source, token=hub_token())
    run.base_model_origin = found.origin
    return StageInput(name="start_model", path=str(found.path), digest=found.digest, origin=found.origin)
