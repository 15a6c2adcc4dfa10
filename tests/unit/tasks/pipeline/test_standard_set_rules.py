"""Standard sets of a run: which stages they bring, what the stages are told, and what is refused before it starts."""

from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.answer_sets import AnswerSetsConfig
from containers.contracts.configs.evaluate_sets import EvaluateSetsConfig
from containers.contracts.configs.filter_dataset import FilterDatasetConfig
from containers.contracts.names import StageName
from tasks.config.errors import InvalidConfigError
from tasks.config.loading import load_run_config
from tests.unit.factories.run_files import write_run

SUMS = {"name": "sums", "kind": "math", "path": "sums.jsonl", "maximum_loss": 0.01}
BENCH = {"name": "bench", "kind": "chats", "path": "bench.jsonl"}
TASK = {"name": "arc", "kind": "lm_eval", "path": "tasks", "task": "arc"}


def mistakes(folder: Path, *sets: dict[str, Any], **sections: object) -> list[str]:
    with pytest.raises(InvalidConfigError) as refused:
        load_run_config(write_run(folder, answer_sets={"sets": list(sets)}, **sections))
    return [str(mistake) for mistake in refused.value.mistakes]


def test_sets_bring_two_stages_and_stay_out_of_the_training_data(tmp_path: Path) -> None:
    config = load_run_config(write_run(tmp_path, answer_sets={"sets": [SUMS, BENCH, TASK]})).config
    names = list(config.stages)
    place = names.index(StageName.ANSWER_SETS)
    assert names[place - 1 : place + 3] == [
        StageName.TRAIN_POLICY,
        StageName.ANSWER_SETS,
        StageName.EVALUATE_SETS,
        StageName.SAMPLE_COMPLETIONS,
    ]
    filters = config.stage_config(StageName.FILTER_DATASET)
    assert isinstance(filters, FilterDatasetConfig)
    assert [(one.name, one.benchmark) for one in filters.suites] == [("sums", "math"), ("bench", "chats")]


def test_what_a_gate_demands_and_where_a_set_lies_change_no_stage(tmp_path: Path) -> None:
    first, second = (
        load_run_config(write_run(tmp_path, answer_sets={"sets": [{**SUMS, **changes}]})).config
        for changes in ({}, {"maximum_loss": 0.2, "must_rule_out": True, "path": "elsewhere.jsonl"})
    )
    for stage in (StageName.ANSWER_SETS, StageName.EVALUATE_SETS, StageName.FILTER_DATASET):
        assert first.stage_config(stage) == second.stage_config(stage)


def test_judges_without_reference_answers_compare_open_questions(tmp_path: Path) -> None:
    judges = [{"type": "people"}, {"type": "regex", "pattern": "x", "kind": "outcome"}]
    run = write_run(tmp_path, answer_sets={"sets": [BENCH]}, evaluate_policy={"judges": judges})
    judging = load_run_config(run).config.stage_config(StageName.EVALUATE_SETS)
    assert isinstance(judging, EvaluateSetsConfig)
    assert [judge.type for judge in judging.judges] == ["regex"]
    run = write_run(tmp_path, answer_sets={"sets": [SUMS]}, evaluate_policy={"judges": judges})
    judging = load_run_config(run).config.stage_config(StageName.EVALUATE_SETS)
    assert isinstance(judging, EvaluateSetsConfig) and judging.judges == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([SUMS, SUMS], "answer_sets.sets.1.name: `sums` is the name of another set already"),
        ([{**TASK, "task": ""}], "answer_sets.sets.0.task: is empty"),
        ([{**TASK, "instruction": "Think."}], "answer_sets.sets.0.instruction: has no effect on kind lm_eval"),
        ([{**TASK, "hub_id": "org/x", "revision": "0" * 40}], "answer_sets.sets.0.hub_id: is not for kind lm_eval"),
        ([{**SUMS, "task": "arc"}], "answer_sets.sets.0.task: has no effect on kind math"),
        ([{**BENCH, "maximum_loss": 0.1}], "answer_sets.sets.0.maximum_loss: of a set that is judged by pairs"),
        ([{**BENCH, "must_rule_out": True}], "answer_sets.sets.0.must_rule_out: says nothing without maximum_loss"),
        ([{**SUMS, "hub_id": "org/name"}], "needs a `revision`"),
        ([{**SUMS, "kind": "maths"}], "answer_sets.sets.0.kind"),
    ],
)
def test_a_set_with_a_mistake_is_refused(tmp_path: Path, given: list[dict[str, Any]], said: str) -> None:
    assert any(said in text for text in mistakes(tmp_path, *given)), mistakes(tmp_path, *given)


def test_a_set_has_another_name_than_a_suite(tmp_path: Path) -> None:
    suites = {"suites": [{"name": "sums", "path": "x.jsonl"}]}
    found = mistakes(tmp_path, SUMS, evaluate_reward_model=suites)
    assert found == ["answer_sets.sets.0.name: `sums` is the name of a suite already. Give it another one."]


def test_several_equal_answers_are_no_pass_at_k(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"answer_sets\.temperature: is 0, so all 4 answers"):
        load_run_config(write_run(tmp_path, answer_sets={"sets": [SUMS], "completions_per_item": 4}))


def test_a_set_that_says_what_the_policy_may_lose_needs_a_policy(tmp_path: Path) -> None:
    only_sft: dict[str, Any] = {
        "dataset": None,
        "train_reward_model": None,
        "train_policy": None,
        "demonstrations": {"train": "talks.jsonl", "validation": "held.jsonl"},
        "train_sft": {"schedule": {"max_steps": 30}},
    }
    found = mistakes(tmp_path, SUMS, **only_sft)
    assert any("maximum_loss: is a rule of the policy's gate, and this run has no policy" in text for text in found)
    run = write_run(tmp_path, answer_sets={"sets": [{**SUMS, "maximum_loss": None}]}, **only_sft)
    asked = load_run_config(run).config.stage_config(StageName.ANSWER_SETS)
    assert isinstance(asked, AnswerSetsConfig)
