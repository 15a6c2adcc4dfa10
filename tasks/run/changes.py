"""What a run has that the last one of its name had not: keys of the configuration, the code, and figures."""

import json
from collections.abc import Iterator, Mapping

import yaml
from pydantic import JsonValue

from containers.contracts.outcome import Metric
from containers.contracts.pipeline import JUDGED_BY
from containers.contracts.records import PipelineRecord, RunChange
from containers.formatting import interval, quantity

_MOST_SETTINGS = 40
_LONGEST = 120
_ABSENT = "not set"


def flat(tree: JsonValue, prefix: str = "") -> dict[str, JsonValue]:
    """The leaves of a tree by their dotted keys; lists are leaves."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    found: dict[str, JsonValue] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}.{key}" if prefix else key)
    return found


def changed_keys(trees: Mapping[str, Mapping[str, JsonValue]]) -> list[str]:
    """The keys whose values are not the same in all trees, in the order of the first tree that has each."""
    keys = dict.fromkeys(key for tree in trees.values() for key in tree)
    return [key for key in keys if len({json.dumps(tree.get(key)) for tree in trees.values()}) > 1]


def changes_since(before: PipelineRecord | None, now: PipelineRecord) -> tuple[RunChange, ...]:
    """What differs from the last run of the same name, settings first; empty without such a run."""
    if before is None:
        return ()
    return (*_settings(before, now), *_code(before, now), *_figures(before, now))


def _settings(before: PipelineRecord, now: PipelineRecord) -> Iterator[RunChange]:
    old, new = _tree(before.config_yaml), _tree(now.config_yaml)
    for key in changed_keys({"before": old, "now": new})[:_MOST_SETTINGS]:
        yield RunChange(kind="setting", name=key, before=_shown(old, key), now=_shown(new, key))


def _tree(text: str) -> dict[str, JsonValue]:
    try:
        return flat(yaml.safe_load(text))
    except yaml.YAMLError:
        return {}


def _shown(tree: Mapping[str, JsonValue], key: str) -> str:
    text = json.dumps(tree[key], ensure_ascii=False) if key in tree else _ABSENT
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _code(before: PipelineRecord, now: PipelineRecord) -> Iterator[RunChange]:
    if before.git_commit != now.git_commit:
        yield RunChange(
            kind="code", name="git commit", before=before.git_commit or _ABSENT, now=now.git_commit or _ABSENT
        )


def _figures(before: PipelineRecord, now: PipelineRecord) -> Iterator[RunChange]:
    """The figures that judge the models."""
    for stage in JUDGED_BY.values():
        old, new = (
            {metric.name: metric for record in run.stages if record.stage is stage for metric in record.metrics}
            for run in (before, now)
        )
        for name in old.keys() & new.keys():
            if old[name].value != new[name].value:
                told = f"{stage}: {name}"
                yield RunChange(kind="figure", name=told, before=_figure(old[name]), now=_figure(new[name]))


def _figure(metric: Metric) -> str:
    around = interval(metric)
    return quantity(metric.value, metric.unit) + (f" ({around})" if around else "")
