"""filter_demonstrations on made rows, and on real ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from containers.contracts.configs.filter_demonstrations import FilterDemonstrationsConfig
from containers.contracts.configs.filter_prompts import FilterPromptsConfig
from containers.contracts.configs.parts.row_filters import HeldOutSuite
from containers.contracts.funnel import Funnel
from containers.contracts.names import StageName
from containers.document.markdown import markdown
from containers.harness.errors import BadDataError
from containers.report.data import data_section, unaccounted_rows
from containers.stages import filter_prompts
from containers.stages.filter_demonstrations import run
from tests.unit.factories.spec_factory import make_context

THINGS = ("apples", "pears", "plums", "figs", "dates", "limes", "nuts", "eggs", "pens", "cups", "hats", "keys")


class Run:
    """One run of the stage, with what it wrote."""

    def __init__(self, tmp_path: Path, inputs: Mapping[str, Path], **settings: Any) -> None:
        defaults = {"validation_fraction": 0.2, "similar_prompts": "report", "near_duplicates": "off"}
        config = FilterDemonstrationsConfig(**{**defaults, **settings})
        context = make_context(tmp_path, StageName.FILTER_DEMONSTRATIONS, config, inputs, seed=7)
        self.metrics = {metric.name: metric.value for metric in run(context)}
        self.output = context.output
        self.funnel = Funnel.model_validate_json((context.output / "funnel.json").read_text())
        self.dropped_by = {step.reason: step.dropped for step in self.funnel.steps if step.dropped}

    def rows(self, part: str) -> list[dict[str, Any]]:
        return list(pq.read_table(self.output / f"{part}_demonstrations.parquet").to_pylist())

    @property
    def questions(self) -> set[str]:
        return {row["prompt"][-1]["content"] for part in ("train", "validation") for row in self.rows(part)}


def question(number: int) -> str:
    return f"Tom the {THINGS[number % 12]} seller has {number} {THINGS[number % 12]} and sells {number // 2}. Left?"


def solved(number: int, **more: Any) -> dict[str, Any]:
    return {"question": question(number), "answer": f"He has {number - number // 2} of them left.", **more}


def written(tmp_path: Path, rows: list[dict[str, Any]], *, name: str = "rows.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_every_row_is_kept_on_one_side_or_counted(tmp_path: Path) -> None:
    rows = [solved(number) for number in range(60)]
    rows += [rows[0], {"question": question(61), "answer": "Say <|im_end|>."}, {"question": question(62), "answer": ""}]
    found = Run(tmp_path, {"train_data": written(tmp_path, rows)}, max_malformed_fraction=0.1)
    assert found.dropped_by == {"empty_response": 1, "control_tokens": 1, "duplicate": 1}
    train, validation = found.rows("train"), found.rows("validation")
    assert len(train) + len(validation) == 60 and len(validation) >= 5
    assert {row["completion"][0]["role"] for row in train} == {"assistant"}
    assert unaccounted_rows(found.funnel) == 0
    assert found.metrics["answers"] == found.funnel.num_answers == 60
    shown = markdown(data_section(found.funnel))
    assert "What the demonstrations are for" in shown and "Fine-tuning" in shown


def test_rows_of_one_question_stay_on_one_side(tmp_path: Path) -> None:
    rows = [{**solved(number), "answer": f"{number} in way {way}."} for number in range(30) for way in range(3)]
    found = Run(tmp_path, {"train_data": written(tmp_path, rows)})
    sides = [{row["prompt"][-1]["content"] for row in found.rows(part)} for part in ("train", "validation")]
    assert not sides[0] & sides[1]
    assert (len(found.rows("train")), len(found.rows("validation"))) == (3 * len(sides[0]), 3 * len(sides[1]))


def test_no_question_that_judges_the_policy_is_learnt_whatever_its_template(tmp_path: Path) -> None:
    file = written(tmp_path, [{"problem": question(number), "answer": str(number)} for number in range(60)])
    config = FilterPromptsConfig(
        evaluation_fraction=0.3,
        minimum_frozen_prompts=1,
        similar_prompts="report",
        near_duplicates="off",
        prompt_template="Think step by step, then write the number alone on the last line of all. {prompt}",
    )
    prompts = make_context(tmp_path / "prompts", StageName.FILTER_PROMPTS, config, {"train_data": file}, seed=7)
    filter_prompts.run(prompts)
    parts = ("policy_eval_prompts", "policy_frozen_prompts")
    held_out = [row for part in parts for row in pq.read_table(prompts.output / f"{part}.parquet").to_pylist()]
    asked = {row["prompt"][-1]["content"].partition("of all. ")[2] for row in held_out}
    assert len(asked) > 10

    rows = [solved(number) for number in range(60)]
    rows[5] = {**rows[5], "question": "  " + question(5).upper()}
    found = Run(tmp_path, {"train_data": written(tmp_path, rows, name="solved.jsonl"), "prompts": prompts.output})
    assert found.dropped_by["held_out_prompt"] == len(asked)
    assert not found.questions & asked
    assert unaccounted_rows(found.funnel) == 0


def test_no_question_of_held_out_pairs_or_of_a_suite_is_learnt(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    for file, number in (("tune", 1), ("test", 2), ("frozen", 3)):
        turns = [[{"role": "user", "content": question(number)}]]
        pq.write_table(pa.table({"prompt": turns}), pairs / f"{file}.parquet")
    suite = written(tmp_path, [{"prompt": question(4), "chosen": "Yes, 2.", "rejected": "No."}], name="suite.jsonl")
    conversation = [
        {"role": "user", "content": question(2)},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes."},
    ]
    rows = [
        *(solved(number) for number in range(30)),
    ]
    inputs = {
        "train_data": written(tmp_path, rows),
        "pairs": pairs,
        "suite_own": suite,
    }
    found = Run(tmp_path, inputs, suites=(HeldOutSuite(name="own", benchmark="pairs"),))
    assert found.dropped_by == {"held_out_prompt": 3, "contaminated": 1}
    talks = written(
        tmp_path,
        [
            {"messages": conversation},
            *(
                {
                    "messages": [
                        {"role": "user", "content": question(number)},
                        {"role": "assistant", "content": "It is so."},
                    ]
                }
                for number in range(10, 20)
            ),
        ],
        name="talks.jsonl",
    )
    inputs["train_data"] = talks
    again = Run(tmp_path / "again", inputs, suites=(HeldOutSuite(name="own", benchmark="pairs"),))
    assert again.dropped_by == {"held_out_prompt": 1}


def test_the_model_learns_template_and_system_prompt_in_every_turn_of_the_user(tmp_path: Path) -> None:
    turns = [
        {"role": role, "content": f"{role} speaks in turn {place} of this talk"}
        for place, role in enumerate(("user", "assistant", "user", "assistant"))
    ]
    rows = [{"messages": [{**turns[0], "content": f"user speaks first, row {row}"}, *turns[1:]]} for row in range(12)]
    found = Run(
        tmp_path,
        {"train_data": written(tmp_path, rows)},
        prompt_template="{prompt} Be exact.",
        system_prompt="You are exact.",
        check_language_on_text=False,
    )
    assert found.funnel.num_answers == 24
    for row in found.rows("train"):
        system, first, answer, second = row["prompt"]
        assert system == {"role": "system", "content": "You are exact."}
        assert first["content"].endswith(" Be exact.") and second["content"].endswith("turn 2 of this talk Be exact.")
        assert answer == turns[1]


def test_too_few_rows_are_refused_with_the_reason_that_took_most(tmp_path: Path) -> None:
    rows = [{**solved(number), "language": "german"} for number in range(40)]
    with pytest.raises(BadDataError) as caught:
        Run(tmp_path, {"train_data": written(tmp_path, rows)})
    assert "0 conversations to train on (filter_demonstrations.minimum_train_rows: 2)" in str(caught.value)
    assert "`language` holds: german 40. filter_demonstrations.languages names: english." in str(caught.value)


@pytest.mark.waits
def test_the_solutions_of_gsm8k_are_learnt_but_for_those_of_the_held_out_problems(
    tmp_path: Path, shared_data: Path
) -> None:
    problems = shared_data / "gsm8k_train.jsonl.gz"
    config = FilterPromptsConfig(evaluation_fraction=0.1)
    prompts = make_context(tmp_path / "prompts", StageName.FILTER_PROMPTS, config, {"train_data": problems}, seed=7)
    filter_prompts.run(prompts)
    judged = pq.read_table(prompts.output / "policy_eval_prompts.parquet").to_pylist()
    frozen = pq.read_table(prompts.output / "policy_frozen_prompts.parquet").to_pylist()
    held_out = {row["prompt"][-1]["content"] for row in (*judged, *frozen)}
    found = Run(
        tmp_path, {"train_data": problems, "prompts": prompts.output}, similar_prompts="drop", near_duplicates="drop"
    )
    assert not found.questions & held_out
    assert found.dropped_by["held_out_prompt"] >= len(held_out) > 150
    assert found.funnel.rows_read == 2000 and unaccounted_rows(found.funnel) == 0
    assert all("####" in row["completion"][0]["content"] for row in found.rows("train"))
