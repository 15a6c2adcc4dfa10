"""What arms share: stages that all of them make alike are made once. Known before any of them is started."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from containers.contracts.names import StageName
from tasks.config.run import RunConfig
from tasks.config.sources import ModelSource
from tasks.pipeline.stages import ONLY_AWAITED, Made, Stage, required_config, walk


class _Signatures:
    """In place of a stage's result: a text that is the same for the same work. Nothing is looked up."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.of_stages: dict[str, str] = {}

    def made(self, stage: Stage, made: Made) -> str:
        """Return the signature of the stage."""
        read = {role: made.get(role) for role in stage.read_in(self._config) if role not in ONLY_AWAITED}
        config = required_config(self._config, stage.name)
        sources = {
            StageName.FILTER_DATASET: self._config.dataset,
            StageName.FILTER_PROMPTS: self._config.prompts,
            StageName.FILTER_DEMONSTRATIONS: self._config.demonstrations,
        }
        source = sources.get(stage.name)
        signature = _digest(
            [
                stage.name,
                config.model_dump(mode="json"),
                self._config.seed_of(stage.name),
                None if source is None else source.model_dump(mode="json"),
                str(self._config.tokenizer_file),
                self._config.gpu_profile.model_dump(mode="json"),
                read,
            ]
        )
        self.of_stages[stage.name] = signature
        return signature

    def named(self, stage: Stage, source: ModelSource) -> Any:
        """Return the signature of a model that the run names."""
        return _digest([stage.role, source.model_dump(mode="json")])


def signatures(config: RunConfig) -> dict[str, str]:
    """Stage, and role of a result, → a text that is the same in runs that do the same work for it."""
    resolver, made = _Signatures(config), dict[str, Any]()
    for _ in walk(config, resolver, made=made):
        pass
    return {**{role: str(signature) for role, signature in made.items()}, **resolver.of_stages}


def shared_stages(configs: Sequence[RunConfig]) -> dict[StageName, list[list[int]]]:
    """For each stage, the runs that do the same work for it, by place; the same work is done once.

    Example: of two runs that differ in the policy's beta, `train_reward_model` has [[0, 1]], `train_policy` [[0], [1]].
    """
    found: dict[StageName, list[list[int]]] = {}
    known = [signatures(config) for config in configs]
    for stage in StageName:
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for place, of_run in enumerate(known):
            if stage.value in of_run:
                groups[of_run[stage.value]].append(place)
        if groups:
            found[stage] = list(groups.values())
    return found


def made_by(configs: Sequence[RunConfig]) -> Iterator[tuple[int, StageName, tuple[int, ...]]]:
    """Yield the run that makes each result, its stage, and all runs that use it: runs start in this order."""
    for stage, groups in shared_stages(configs).items():
        for group in groups:
            yield group[0], stage, tuple(group)


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
