"""Runs of filter_dataset on rows made by hand, with what they wrote."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.funnel import Funnel
from containers.contracts.names import StageName
from containers.contracts.outcome import Metric
from containers.data.funnel_by_group import groups_of
from containers.stages.filter_dataset import run
from tests.unit.factories.spec_factory import make_context

GOOD = "A lentil soup with fresh bread is easy to make, and everybody likes it."
BAD = "I have no idea, ask somebody else who knows about it."
GERMAN = "Eine Linsensuppe mit frischem Brot ist leicht zu kochen und schmeckt allen."


class Run:
    """One run of the stage, with what it wrote; floors of one pair and no policy prompt unless given."""

    def __init__(self, tmp_path: Path, inputs: Mapping[str, Path], **settings: Any) -> None:
        seed = settings.pop("seed", 7)
        floors = {"minimum_train_pairs": 1, "minimum_validation_pairs": 1, "minimum_policy_prompts": 0}
        config = FilterDatasetConfig(**{**floors, **settings})
        self.context = make_context(tmp_path, StageName.FILTER_DATASET, config, inputs, seed=seed)
        self.metrics: tuple[Metric, ...] = run(self.context)
        self.funnel = Funnel.model_validate_json((self.context.output / "funnel.json").read_text())
        self.dropped_by = {step.reason: step.dropped for step in self.funnel.steps}

    def table(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.context.output / f"{name}.parquet").to_pylist()
        return rows

    def prompts(self, name: str) -> set[str]:
        return {row["prompt"][-1]["content"] for row in self.table(name)}

    def lines(self, name: str) -> list[dict[str, Any]] | None:
        """The objects of a file of JSON lines; None where it was not written."""
        path = self.context.output / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else None

    @property
    def dropped(self) -> list[dict[str, Any]]:
        return self.lines("dropped.jsonl") or []


def helpsteer3(number: int, **changes: Any) -> dict[str, Any]:
    """A row in HelpSteer3's schema whose first response is preferred; good English unless changed."""
    return {
        "domain": "general",
        "language": "english",
        "context": [{"role": "user", "content": f"What should I cook for {number} guests this evening?"}],
        "response1": f"{GOOD} Make {number} bowls.",
        "response2": BAD,
        "overall_preference": -2,
        **changes,
    }


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """The rows as jsonl."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_hundred(folder: Path) -> Path:
    """A hundred good rows with a prompt each."""
    return write(folder / "train.jsonl", [helpsteer3(number) for number in range(100)])


def assert_every_row_is_counted(funnel: Funnel) -> None:
    """The funnel adds up: in all, from step to step, and within each step."""
    dropped = sum(step.dropped for step in funnel.steps)
    assert (
        funnel.train_pairs + funnel.validation_pairs + funnel.pairs_set_aside_for_policy + dropped == funnel.rows_read
    )
    left = funnel.rows_read
    for step in funnel.steps:
        assert step.rows_in == left
        assert sum(count for _, count in step.dropped_by_domain) == step.dropped
        for counts in (step.dropped_by_language, step.dropped_by_strength, step.dropped_by_source):
            assert sum(count for _, count in counts) == step.dropped
        assert len(step.examples) == min(step.dropped, 5)
        left = step.rows_out
    for groups in groups_of(funnel).values():
        assert sum(steps[-1].rows_out for steps in groups.values()) == left
        assert min(step.rows_out for steps in groups.values() for step in steps) >= 0
