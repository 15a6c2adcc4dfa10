"""Tells Prefect which assets a stage made of which: dataset → pairs → reward model → policy.

These are Prefect's own events of assets. The open-source server keeps them in its event feed, where automations can
use them; a page of the lineage is drawn by Prefect Cloud only.
"""

from prefect.events import emit_event

from containers.contracts.names import StageName
from containers.contracts.spec import ArtifactRef, StageInput
from tasks.prefect_sync.link import present_link
from tasks.run.state import PipelineRun

# What other stages start from; evaluations and reports are none.
_ASSETS = frozenset(
    {
        StageName.FILTER_DATASET,
        StageName.BUILD_BASE_MODEL,
        StageName.TRAIN_SFT,
        StageName.TRAIN_REWARD_MODEL,
        StageName.TRAIN_POLICY,
    }
)


def tell_asset(run: PipelineRun, artifact: ArtifactRef, inputs: tuple[StageInput, ...]) -> None:
    """The stage made this anew of those inputs; nothing outside a flow run, or where no other stage starts from it."""
    if present_link() is None or artifact.stage not in _ASSETS:
        return
    sources = [_input_key(run, item) for item in inputs]
    for source in sources:
        emit_event(event="prefect.asset.referenced", resource={"prefect.resource.id": source})
    emit_event(
        event="prefect.asset.materialization.succeeded",
        resource={"prefect.resource.id": _key(run, artifact.stage), "prefect.resource.name": artifact.stage.value},
        related=[{"prefect.resource.id": source, "prefect.resource.role": "asset"} for source in sources],
        payload={"key": artifact.key, "digest": artifact.digest, "path": artifact.path, "run": run.run_id},
    )


def _key(run: PipelineRun, stage: str) -> str:
    return f"rlhf://{run.config.run.name}/{stage}"


def _input_key(run: PipelineRun, item: StageInput) -> str:
    """The asset of the stage that made an input, else where it came from: a hub id or a path of this machine."""
    maker = item.origin.partition(" ")[0]
    if maker in set(StageName):
        return _key(run, maker)
    return f"hub://{maker.partition('@')[0]}" if item.digest.startswith("hub:") else f"file://{item.path}"
