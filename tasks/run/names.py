"""Names of a run in Prefect and MLflow, by which users can tell runs apart without opening them."""

import shlex
from itertools import pairwise
from pathlib import Path

from prefect.context import FlowRunContext

from tasks.config.run import RunConfig
from tasks.sources.labels import SEPARATOR, dataset_label, model_label


def run_title(config: RunConfig, *, command: str = "") -> str:
    """Model, dataset at its revision, and GPU profile: `qwen3-8b · helpsteer3@2f1a · 7x48gb`.

    A run whose name differs from its file's gets it at the end: `… · 7x48gb · higher-lr`. A branch is shown as written,
    and local data without a digest: filter_dataset finds out commit and digest, and corrects the name of the run.

    Args:
        command: how to repeat the run; names the file.
    """
    parts = [_model(config), dataset_label(config.sources[0]), config.gpu_profile.name]
    if _file_in(command) not in ("", config.run.name):
        parts.append(config.run.name)
    return SEPARATOR.join(parts)


def run_tags(config: RunConfig, *, runtime: str) -> tuple[str, ...]:
    """The run's own tags, then its name in the YAML, its profile and its runtime: `run:demo`, `profile:cpu`."""
    own = (f"run:{config.run.name}", f"profile:{config.gpu_profile.name}", f"runtime:{runtime}")
    return tuple(dict.fromkeys((*config.run.tags, *own)))


def flow_run_name() -> str:
    """`run_title` of the flow run that is about to start; for flows with the parameters `config` and `command`."""
    context = FlowRunContext.get()
    parameters = (context.parameters or {}) if context else {}
    config = parameters.get("config")
    if not isinstance(config, RunConfig):
        raise TypeError(f"The flow's parameter `config` is a {type(config).__name__}, and a RunConfig is wanted.")
    return run_title(config, command=str(parameters.get("command", "")))


def _file_in(command: str) -> str:
    """The name of the run configuration in a command, without folder and ending; empty where it names none."""
    words = shlex.split(command)
    named = next((after for word, after in pairwise(words) if word in ("-c", "--config")), "")
    return Path(named).stem


def _model(config: RunConfig) -> str:
    if config.base_model is not None:
        return model_label(config.base_model)
    built = config.build_base_model
    return f"own-{built.num_layers}x{built.hidden_size}" if built else "no-model"
