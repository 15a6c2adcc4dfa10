"""What an upgrade changes for a run, said once before it: stages made anew and their cost, store, databases."""

import os
from collections.abc import Iterator, Mapping, Sequence

from containers.contracts.names import StageName
from containers.launch.base import LaunchError
from flows.servers.database_versions import database_upgrade_lines
from flows.servers.databases import DATABASE_VARIABLES
from flows.servers.settings import STATE_DIR
from tasks.config.run import RunConfig
from tasks.plan.quantities import duration_text
from tasks.plan.run_plan import RunPlan
from tasks.run.runtime import code_identity
from tasks.run.versions import last_versions, present_versions
from tasks.store.format import NewerStoreError, demand_known_store
from tasks.store.history import StageHistory

_ABSENT = "absent"
_IMAGE = "image"


def upgrade_lines(config: RunConfig, plan: RunPlan) -> tuple[str, ...]:
    """A line for each thing that another version of this package, or of one below it, changes; none: nothing."""
    try:
        demand_known_store(config.store_dir)
    except NewerStoreError as error:
        return (f"{error} `rlhf run` refuses it.",)
    own_files = [name for name, is_elsewhere in _servers_elsewhere(config).items() if not is_elsewhere]
    return (*_programs(config, plan), *database_upgrade_lines(STATE_DIR, own_files))


def _servers_elsewhere(config: RunConfig) -> dict[str, bool]:
    """Whether each server is none of ours, or has a database of the user's own, which is not looked at."""
    named = {
        "prefect": config.tracking.prefect_api_url or os.environ.get("PREFECT_API_URL"),
        "mlflow": config.tracking.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI"),
    }
    return {name: bool(url or os.environ.get(DATABASE_VARIABLES[name])) for name, url in named.items()}


def _programs(config: RunConfig, plan: RunPlan) -> Iterator[str]:
    """That stages which this run had are made anew, since what they are made with changed."""
    store_dir = config.store_dir.resolve()
    history = StageHistory(store_dir, run_name=config.run.name, output_dir=config.output_dir)
    try:
        code = code_identity(config.runtime.kind, image=config.image)
    except LaunchError:  # the plan says it for each stage
        return
    before = {stage: memory for stage in config.stages if (memory := history.last(stage)) is not None}
    changed = [stage for stage, memory in before.items() if memory.identity.get("code") not in (None, code.digest)]
    changed = [stage for stage in changed if stage is not StageName.WRITE_REPORT]  # every run writes its own
    if not changed:
        return
    noted = last_versions(store_dir, run_file=history.path.name)
    differences = changed_versions([noted[stage] for stage in changed if stage in noted], present_versions(code))
    what = ", ".join(differences) or "sources, packages or image; an earlier version did not note which"
    again = [stage for stage in plan.stages if stage.stage in changed and not stage.is_reused]
    if not again:
        return
    seconds = sum(stage.time.value or 0 for stage in again if stage.time)
    unknown = [stage.stage.value for stage in again if stage.time is not None and stage.time.value is None]
    cost = f"{duration_text(seconds)} (estimated)" + (f", without {', '.join(unknown)}" if unknown else "")
    yield (
        f"what stages are made with changed since this run's last: {what}. So {len(again)} of its stages are not "
        f"reused ({', '.join(stage.stage.value for stage in again)}): {cost}. What they made stays in the store; with "
        "the earlier version it is reused again."
    )


def changed_versions(before: Sequence[Mapping[str, str]], now: Mapping[str, str]) -> list[str]:
    """`torch 2.8.0 → 2.9.0` for each version that differs from what any of the stages was made with."""
    found: dict[str, None] = {}
    for versions in before:
        if (_IMAGE in versions) != (_IMAGE in now):
            found[f"the runtime: {_made_in(versions)} → {_made_in(now)}"] = None
            continue
        for name in dict.fromkeys((*versions, *now)):
            old, new = versions.get(name, _ABSENT), now.get(name, _ABSENT)
            if old != new:
                found[f"{name} {old} → {new}"] = None
    return list(found)


def _made_in(versions: Mapping[str, str]) -> str:
    return f"image {versions[_IMAGE]}" if _IMAGE in versions else "process"
