"""The rules about which part of the pipeline a run does: `run.until` and `run.again_from`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from containers.contracts.names import StageName
from flows.config_errors import Mistake

if TYPE_CHECKING:
    from flows.run_config import RunConfig

_AT_THE_EDGES = (StageName.CHECK_SYSTEM, StageName.WRITE_REPORT)


def stage_range_exists(config: RunConfig) -> Iterator[Mistake]:
    """Both name stages that this run has; what is checked and reported is done by every run."""
    stages = [stage for stage in config.possible_stages if stage not in _AT_THE_EDGES]
    for key, named in (("until", config.run.until), ("again_from", config.run.again_from)):
        if named is not None and named not in stages:
            yield Mistake(
                f"run.{key}", f"`{named}` is no stage of this run that could be named here. {_listed(stages)}"
            )


def stage_range_is_not_empty(config: RunConfig) -> Iterator[Mistake]:
    """What is to be made again lies before the end of the run."""
    stages, until, again_from = list(config.possible_stages), config.run.until, config.run.again_from
    if until in stages and again_from in stages and stages.index(again_from) > stages.index(until):
        yield Mistake(
            "run.again_from", f"`{again_from}` comes after run.until, which is `{until}`: nothing is left to do."
        )


def _listed(stages: list[StageName]) -> str:
    return f"Wanted one of: {', '.join(stages)}."
