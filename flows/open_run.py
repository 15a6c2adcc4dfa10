"""From a configuration to an open run: runtime chosen, tracking open, closed again whatever happens."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasks.check_system import CheckRequest
from tasks.config.loading import LoadedConfig
from tasks.config.run import RunConfig
from tasks.gates.notice import notify_blocks
from tasks.pipeline.inputs import reference_source
from tasks.pipeline.open_run import open_pipeline
from tasks.plan.run_plan import RunPlan, draft_plan
from tasks.prefect_sync.naming import introduce_run
from tasks.run.names import run_tags, run_title
from tasks.run.state import PipelineRun
from tasks.sources.resolve import hub_token

DEFAULT_MLFLOW_URI = "http://127.0.0.1:5000"


@contextmanager
def open_run(config: RunConfig, *, command: str, config_yaml: str) -> Iterator[PipelineRun]:
    """The run that `config` describes, with its MLflow parent run open for as long as the block lasts."""
    with open_pipeline(
        config,
        mlflow_uri=mlflow_uri(config),
        command=command,
        config_yaml=config_yaml,
        title=run_title(config, command=command),
    ) as run:
        introduce_run(run, run_tags(config, runtime=run.runtime.name))
        yield run


def check_request(config: RunConfig, *, plan: RunPlan | None = None) -> CheckRequest:
    """What the system check looks at for this run; its plan is made where none is given."""
    if plan is None:
        path = Path(config.run.name)
        plan = draft_plan(LoadedConfig(config=config, profile=config.gpu_profile, yaml_text="", path=path))
    reference = config.filter_dataset.polarity.reference_reward_model
    return CheckRequest(
        profile=config.gpu_profile,
        runtime=config.runtime.kind,
        image=config.image,
        output_dir=config.store_dir,
        disk_needed_bytes=int(plan.disk_bytes),
        memory_needed_bytes=int(plan.host_memory_bytes),
        model=config.base_model,
        reward_model=config.reward_model,
        reference_reward_model=None if reference is None else reference_source(reference),
        dataset=config.dataset,
        suites=config.evaluate_reward_model.suites,
        tokenizer_file=config.tokenizer_file,
        prefect_api_url=os.environ.get("PREFECT_API_URL") or config.tracking.prefect_api_url,
        mlflow_tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or config.tracking.mlflow_uri,
        token_present=hub_token() is not None,
        notify_blocks=notify_blocks(config.gates),
        needs_vllm=config.train_policy.rollout_engine == "vllm",
    )


def mlflow_uri(config: RunConfig) -> str:
    """The configured MLflow server, the environment's, or the one that the CLI starts."""
    return config.tracking.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_MLFLOW_URI
