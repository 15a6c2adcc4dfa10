"""A prompt on both sides of a split, or a split that moves with other rows, makes figures look better than they are."""

from pathlib import Path

import pytest

from tests.unit.factories.filter_factory import BAD, Run, assert_every_row_is_counted, helpsteer3, write, write_hundred


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    return write_hundred(tmp_path)


def test_no_prompt_stands_on_two_sides(tmp_path: Path) -> None:
    rows = [helpsteer3(number, response2=f"{BAD} {copy}") for number in range(80) for copy in range(3)]
    done = Run(tmp_path, {"train_data": write(tmp_path / "train.jsonl", rows)}, validation_fraction=0.2)
    sides = [done.prompts(name) for name in ("train", "validation", "policy_train_prompts", "policy_eval_prompts")]
    assert all(sides)
    assert sum(map(len, sides)) == len(set.union(*sides)) == 80
    assert len(done.table("policy_train_prompts")) == len(sides[2])
    assert_every_row_is_counted(done.funnel)


def test_without_prompts_set_aside_the_policy_trains_on_all_and_is_evaluated_on_validation(
    tmp_path: Path, hundred: Path
) -> None:
    done = Run(tmp_path, {"train_data": hundred}, policy_prompt_fraction=0, validation_fraction=0.2)
    assert done.prompts("policy_train_prompts") == done.prompts("train")
    assert done.prompts("policy_eval_prompts") == done.prompts("validation")
    assert done.funnel.pairs_set_aside_for_policy == 0


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_split(tmp_path: Path, hundred: Path) -> None:
    runs = [Run(tmp_path / str(n), {"train_data": hundred}, seed=seed) for n, seed in enumerate((7, 7, 8))]
    contents = [
        {path.name: path.read_bytes() for path in done.context.output.rglob("*") if path.is_file()} for done in runs
    ]
    assert len(contents[0]) == 9
    assert contents[0] == contents[1]
    assert runs[0].prompts("validation") != runs[2].prompts("validation")


def test_the_split_depends_neither_on_order_nor_on_other_rows(tmp_path: Path) -> None:
    rows = [helpsteer3(number) for number in range(100)]
    first = Run(tmp_path / "1", {"train_data": write(tmp_path / "a.jsonl", rows)}, validation_fraction=0.2)
    more = [helpsteer3(number) for number in range(150)][::-1]
    second = Run(tmp_path / "2", {"train_data": write(tmp_path / "b.jsonl", more)}, validation_fraction=0.2)
    assert first.prompts("validation") < second.prompts("validation")
    assert first.prompts("train") < second.prompts("train")


def test_a_prompt_of_the_validation_file_trains_nothing(tmp_path: Path) -> None:
    louder = {"context": [{"role": "user", "content": "WHAT should I cook  for 3 guests this evening?"}]}
    inputs = {
        "train_data": write(tmp_path / "train.jsonl", [helpsteer3(n) for n in range(50)]),
        "validation_data": write(
            tmp_path / "valid.jsonl", [helpsteer3(n) for n in range(60, 70)] + [helpsteer3(3, **louder)]
        ),
    }
    done = Run(tmp_path, inputs)
    assert (done.funnel.validation_pairs, done.dropped_by["prompt_in_validation"]) == (11, 1)
    assert_every_row_is_counted(done.funnel)


def test_a_sample_leaves_the_validation_file_whole(tmp_path: Path, hundred: Path) -> None:
    validation = write(tmp_path / "valid.jsonl", [helpsteer3(n) for n in range(200, 230)])
    done = Run(tmp_path, {"train_data": hundred, "validation_data": validation}, max_rows=40)
    assert done.dropped_by["sampled_away"] == 60
    assert (done.funnel.train_pairs + done.funnel.pairs_set_aside_for_policy, done.funnel.validation_pairs) == (40, 30)
