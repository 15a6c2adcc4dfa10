"""What an upgrade changes for a run, said once before it: stages made anew and their cost, store, databases."""

import os
from collections.abc import Iterable, Iterator

from containers.contracts.names import StageName
from containers.contracts.programs import Program
from containers.launch.base import LaunchError
from flows.servers.database_versions import database_upgrade_lines
from flows.servers.databases import DATABASE_VARIABLES
from flows.servers.settings import STATE_DIR
from tasks.config.run import RunConfig
from tasks.plan.figures import duration_text
from tasks.plan.run_plan import RunPlan
from tasks.run.runtime import code_identity
from tasks.store.format import NewerStoreError, demand_known_store
from tasks.store.history import StageHistory, changed_files, changed_versions


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
        code = code_identity(config.runtime.kind, image=config.image, store_dir=store_dir)
        before = {stage: memory for stage in config.stages if (memory := history.last(stage)) is not None}
        now = {stage: code.program(stage_config) for stage in before if (stage_config := config.stage_config(stage))}
    except LaunchError:  # the plan says it for each stage
        return
    changed = [stage for stage in now if before[stage].identity.get("code") not in (None, now[stage].digest)]
    changed = [stage for stage in changed if stage is not StageName.WRITE_REPORT]  # every run writes its own
    if not changed:
        return
    what = ", ".join(all_changes((before[stage].program, now[stage]) for stage in changed))
    what = what or "sources, packages or image; an earlier version did not note which"
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


def all_changes(programs: Iterable[tuple[Program | None, Program]]) -> list[str]:
    """`torch 2.8.0 → 2.9.0` for each version that differs for any of the stages, and how many sources do."""
    known = [(before, now) for before, now in programs if before is not None]
    versions = [line for before, now in known for line in changed_versions(before, now)]
    files = {path for before, now in known for path in changed_files(before, now)}
    return [*dict.fromkeys(versions), *([f"{len(files)} source file{'s' if len(files) > 1 else ''}"] if files else [])]
