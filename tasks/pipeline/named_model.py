"""The models that a run or a command names: fetched from the hub at a commit, or taken from a local folder."""

from pathlib import Path

from containers.contracts.spec import StageInput
from tasks.config.sources import RewardModelSource
from tasks.pipeline.inputs import named_model_input
from tasks.pipeline.reward_models import named_reward_model as named_reward_model
from tasks.pipeline.reward_models import whole_reward_model
from tasks.run.state import PipelineRun
from tasks.sources.adapters import COMMAND_LINE
from tasks.sources.resolve import ModelSource


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


def reward_model_source(model: str, *, base: str | None = None) -> ModelSource | None:
    """The reward model that a command line names; None where it is named in no way that is known.

    A folder may be the model itself, a LoRA adapter, or what a training here left: its artifact, or the output folder
    of its run. An adapter is put together with its base model, so the source is then a folder beside what was fetched.

    Args:
        model: a folder, or `org/name@revision` on the hub.
        base: base model of an adapter, named in the same two ways; None: the one that the adapter names.

    Raises:
        SourceError: an adapter or its base model is not there or cannot be used; or `base` stands beside no adapter.
        ValidationError: it looks like a model on the hub, and its name or revision is not one.
    """
    if model and Path(model).is_dir():
        return whole_reward_model(RewardModelSource(path=model, base=base), keys=COMMAND_LINE)
    hub_id, at, revision = model.partition("@")
    if not at or hub_id.count("/") != 1 or Path(hub_id).exists():
        return None
    source = RewardModelSource(hub_id=hub_id, revision=revision, base=base)
    return whole_reward_model(source, keys=COMMAND_LINE)
