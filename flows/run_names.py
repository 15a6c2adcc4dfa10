"""What a run is called in Prefect and MLflow, so that a person can tell runs apart without opening them."""

from prefect.context import FlowRunContext

from flows.run_config import RunConfig
from tasks.source_labels import SEPARATOR, dataset_label, model_label


def run_title(config: RunConfig) -> str:
    """Model, dataset at its revision, and GPU profile: `qwen3-8b · helpsteer3@2f1a · 7x48gb`.

    A branch stands as it is written, and local data without a digest: both are known when filter_dataset has looked,
    which then corrects the name of the run.
    """
    return SEPARATOR.join((_model(config), dataset_label(config.dataset), config.gpu_profile.name))


def run_tags(config: RunConfig, *, runtime: str) -> tuple[str, ...]:
    """The run's own tags, then its name in the YAML, its profile and its runtime: `run:demo`, `profile:cpu`."""
    own = (f"run:{config.run.name}", f"profile:{config.gpu_profile.name}", f"runtime:{runtime}")
    return tuple(dict.fromkeys((*config.run.tags, *own)))


def flow_run_name() -> str:
    """`run_title` of the flow run that is about to start; for flows with a parameter `config`."""
    context = FlowRunContext.get()
    config = (context.parameters or {}).get("config") if context else None
    if not isinstance(config, RunConfig):
        raise TypeError(f"The flow's parameter `config` is a {type(config).__name__}, and a RunConfig is wanted.")
    return run_title(config)


def _model(config: RunConfig) -> str:
    if config.base_model is not None:
        return model_label(config.base_model)
    built = config.build_base_model
    return f"own-{built.num_layers}x{built.hidden_size}" if built else "no-model"
