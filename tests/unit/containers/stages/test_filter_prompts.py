"""filter_prompts on made rows, and on real ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.configs.parts.row_filters import HeldOutSuite
from containers.contracts.funnel import Funnel
from containers.contracts.names import StageName
from containers.harness.errors import BadDataError
from containers.report.data import unaccounted_rows
from containers.stages.filter_prompts import run
from tests.unit.factories.spec_factory import make_context

THINGS = ("apples", "pears", "plums", "figs", "dates", "limes", "nuts", "eggs", "pens", "cups", "hats", "keys")


class Run:
    """One run of the stage, with what it wrote."""

    def __init__(self, tmp_path: Path, inputs: Mapping[str, Path], **settings: Any) -> None:
        defaults = {"evaluation_fraction": 0.3, "minimum_frozen_prompts": 1}
        context = make_context(
            tmp_path, StageName.FILTER_PROMPTS, FilterPromptsConfig(**{**defaults, **settings}), inputs, seed=7
        )
        self.metrics = {metric.name: metric.value for metric in run(context)}
        self.output = context.output
        self.funnel = Funnel.model_validate_json((context.output / "funnel.json").read_text())
        self.dropped_by = {step.reason: step.dropped for step in self.funnel.steps if step.dropped}

    def rows(self, part: str) -> list[dict[str, Any]]:
        return list(pq.read_table(self.output / f"policy_{part}_prompts.parquet").to_pylist())

    def texts(self, part: str) -> set[str]:
        return {row["prompt"][-1]["content"] for row in self.rows(part)}


def problem(number: int, *, answer: str | None = "", **more: Any) -> dict[str, Any]:
    text = f"Tom the {THINGS[number % 12]} seller has {number} {THINGS[number % 12]} and sells {number // 2}. Left?"
    return {"problem": text, "answer": str(number - number // 2) if answer == "" else answer, **more}


def written(tmp_path: Path, rows: list[dict[str, Any]], *, name: str = "rows.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_every_prompt_is_kept_on_one_side_or_counted(tmp_path: Path) -> None:
    rows = [problem(number, difficulty=f"{number % 5}/4") for number in range(60)]
    rows += [
        rows[0],
        problem(1, answer="17"),
        problem(70, answer=None),
        {"problem": "Say [INST] to me.", "answer": "1"},
    ]
    found = Run(
        tmp_path,
        {"train_data": written(tmp_path, rows)},
        require_answer=True,
        near_duplicates="off",
        similar_prompts="report",
    )
    assert found.dropped_by == {"without_answer": 1, "control_tokens": 1, "duplicate": 1, "contradictory_answers": 2}
    parts = [found.texts(part) for part in ("train", "eval", "frozen")]
    assert all(parts)
    assert len(set.union(*parts)) == sum(map(len, parts)) == 59
    assert unaccounted_rows(found.funnel) == 0
    assert found.metrics["prompts_with_answer"] == found.funnel.num_with_answer == 59


def test_the_policy_gets_template_system_prompt_answer_and_columns(tmp_path: Path) -> None:
    rows = [problem(number, tests=[number]) for number in range(24)]
    found = Run(
        tmp_path,
        {"train_data": written(tmp_path, rows)},
        prompt_template="{prompt} Answer in a box.",
        system_prompt="You are exact.",
        keep_columns=("tests",),
    )
    by_text = {row["problem"]: row for row in rows}
    for row in found.rows("train"):
        system, user = row["prompt"]
        assert system == {"role": "system", "content": "You are exact."}
        given = by_text[user["content"].removesuffix(" Answer in a box.")]
        assert (row["answer"], json.loads(row["columns"])) == (given["answer"], {"tests": given["tests"]})


def test_difficulty_filters(tmp_path: Path) -> None:
    rows = [problem(number, difficulty=f"{number % 5}/4") for number in range(40)] + [problem(50)]
    found = Run(tmp_path, {"train_data": written(tmp_path, rows)}, min_difficulty=0.25, max_difficulty=0.75)
    assert found.dropped_by["difficulty"] == 8 + 8 + 1
    kept = found.texts("train") | found.texts("eval") | found.texts("frozen")
    assert kept <= {row["problem"] for row in rows if row.get("difficulty") in ("1/4", "2/4", "3/4")}


def test_settings_that_keep_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="min_difficulty 2 is above max_difficulty 1"):
        FilterPromptsConfig(min_difficulty=2, max_difficulty=1)
    with pytest.raises(ValueError, match=r"holds \{prompt\} 0 times"):
        FilterPromptsConfig(prompt_template="Answer.")


def test_a_validation_file_judges_and_no_prompt_of_it_trains(tmp_path: Path) -> None:
    train = written(tmp_path, [problem(number) for number in range(40)])
    held_out = written(tmp_path, [problem(number) for number in range(30, 60)], name="held-out.jsonl")
    inputs = {"train_data": train, "validation_data": held_out}
    found = Run(tmp_path, inputs, near_duplicates="off", similar_prompts="off", frozen_share=0)
    assert found.dropped_by == {"prompt_in_validation": 10}
    assert (len(found.rows("train")), len(found.rows("eval"))) == (30, 30)


def test_prompts_of_a_suite_are_left_out(tmp_path: Path) -> None:
    rows = [problem(number) for number in range(40)]
    suite = [
        {"prompt": [{"role": "user", "content": rows[5]["problem"]}],
         "chosen": [{"role": "assistant", "content": "3"}], "rejected": [{"role": "assistant", "content": "9"}]}
    ]  # fmt: skip
    inputs = {"train_data": written(tmp_path, rows), "suite_own": written(tmp_path, suite, name="suite.jsonl")}
    found = Run(tmp_path, inputs, suites=(HeldOutSuite(name="own", benchmark="pairs"),), near_duplicates="off")
    assert found.dropped_by["contaminated"] == 1
    assert rows[5]["problem"] not in found.texts("train") | found.texts("eval") | found.texts("frozen")


def test_too_few_prompts_show_the_funnel_and_the_setting(tmp_path: Path) -> None:
    rows = [problem(number, answer=None) for number in range(20)]
    with pytest.raises(BadDataError, match=r"(?s)0 prompts to train on .*without_answer.*have none that is known"):
        Run(tmp_path, {"train_data": written(tmp_path, rows)}, require_answer=True)


def test_malformed_rows_are_named_with_the_key_that_allows_them(tmp_path: Path) -> None:
    rows = [problem(number) for number in range(20)] + [problem(20, difficulty="hard")]
    with pytest.raises(BadDataError, match=r"(?s)filter_prompts\.max_malformed_fraction.*difficulty_not_a_number: 1"):
        Run(tmp_path, {"train_data": written(tmp_path, rows)})
    found = Run(tmp_path, {"train_data": written(tmp_path, rows)}, max_malformed_fraction=0.1)
    assert found.dropped_by["difficulty_not_a_number"] == 1


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    rows = written(tmp_path, [problem(number) for number in range(40)])
    one, other = (Run(tmp_path / name, {"train_data": rows}) for name in ("one", "other"))
    for part in ("train", "eval", "frozen"):
        assert one.rows(part) == other.rows(part)


@pytest.mark.waits
def test_real_problems_keep_their_answers(tmp_path: Path, shared_data: Path) -> None:
    found = Run(
        tmp_path,
        {"train_data": shared_data / "gsm8k_train.jsonl.gz", "validation_data": shared_data / "gsm8k_test.jsonl.gz"},
        require_answer=True,
    )
    assert found.funnel.rows_read == 2500
    assert found.funnel.policy_train_prompts > 1900
    assert all(row["answer"].lstrip("-").replace(".", "").isdigit() for row in found.rows("train"))
    polaris = Run(
        tmp_path / "polaris",
        {"train_data": shared_data / "polaris_schema.jsonl"},
        min_difficulty=0.2,
        max_difficulty=0.8,
    )
    assert polaris.dropped_by["difficulty"] == 177


def test_problems_with_several_accepted_answers_keep_all_of_them(tmp_path: Path, shared_data: Path) -> None:
    found = Run(tmp_path, {"train_data": shared_data / "math_competition.jsonl.gz"}, require_answer=True)
    assert found.funnel.rows_read == 689
    assert not found.dropped_by.keys() & {"several_answers", "answer_not_text", "without_answer"}
    rows = [row for part in ("train", "eval", "frozen") for row in found.rows(part)]
    lens = next(row for row in rows if "angular resolution of a single dish" in row["prompt"][-1]["content"])
    assert (lens["answer"], lens["other_answers"]) == ("0.01", ["0.02"])
    # In 26 more rows the accepted answers are one text, written twice.
    assert sum(len(row["other_answers"]) > 0 for row in rows) == 25
