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
    sides = [done.prompts(name) for name in ("train", "test", "policy_train_prompts", "policy_eval_prompts")]
    assert all(sides)
    assert sum(map(len, sides)) == len(set.union(*sides)) == 80
    assert len(done.table("policy_train_prompts")) == len(sides[2])
    assert_every_row_is_counted(done.funnel)


def test_without_prompts_set_aside_the_policy_trains_on_all_and_is_evaluated_on_validation(
    tmp_path: Path, hundred: Path
) -> None:
    done = Run(tmp_path, {"train_data": hundred}, policy_prompt_fraction=0, validation_fraction=0.2)
    assert done.prompts("policy_train_prompts") == done.prompts("train")
    assert done.prompts("policy_eval_prompts") == done.prompts("test")
    assert done.funnel.pairs_set_aside_for_policy == 0


def test_for_a_policy_of_pairs_every_prompt_set_aside_judges(tmp_path: Path, hundred: Path) -> None:
    done = Run(tmp_path, {"train_data": hundred}, policy_prompt_fraction=0.3, policy_eval_prompt_fraction=1)
    assert len(done.table("policy_train_prompts")) == 0
    judged = done.prompts("policy_eval_prompts") | done.prompts("policy_frozen_prompts")
    assert len(judged) == done.funnel.pairs_set_aside_for_policy > 15
    assert not judged & done.prompts("train")
    assert_every_row_is_counted(done.funnel)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_split(tmp_path: Path, hundred: Path) -> None:
    runs = [Run(tmp_path / str(n), {"train_data": hundred}, seed=seed) for n, seed in enumerate((7, 7, 8))]
    contents = [
        {path.name: path.read_bytes() for path in done.context.output.rglob("*") if path.is_file()} for done in runs
    ]
    assert len(contents[0]) == 12
    assert contents[0] == contents[1]
    assert runs[0].prompts("test") != runs[2].prompts("test")


def test_the_split_depends_neither_on_order_nor_on_other_rows(tmp_path: Path) -> None:
    rows = [helpsteer3(number) for number in range(100)]
    first = Run(tmp_path / "1", {"train_data": write(tmp_path / "a.jsonl", rows)}, validation_fraction=0.2)
    more = [helpsteer3(number) for number in range(150)][::-1]
    second = Run(tmp_path / "2", {"train_data": write(tmp_path / "b.jsonl", more)}, validation_fraction=0.2)
    assert first.prompts("test") < second.prompts("test")
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


def _parts(done: Run) -> list[set[str]]:
    return [done.prompts(name) for name in ("tune", "test", "frozen")]


def test_each_purpose_has_validation_prompts_of_its_own(tmp_path: Path, hundred: Path) -> None:
    rows = [helpsteer3(number, response2=f"{BAD} {copy}") for number in range(200, 300) for copy in range(2)]
    inputs = {"train_data": hundred, "validation_data": write(tmp_path / "valid.jsonl", rows)}
    parts = {"tune": 0.3, "test": 0.3, "frozen": 0.4, "minimum_prompts": 10}
    done = Run(tmp_path, inputs, validation_parts=parts)
    found = _parts(done)
    assert all(len(part) >= 10 for part in found)
    assert sum(map(len, found)) == len(set.union(*found)) == 100
    assert [(part.num_prompts, part.num_pairs) for part in done.funnel.validation_parts] == [
        (len(part), 2 * len(part)) for part in found
    ]
    assert [part.name for part in done.funnel.validation_parts if part.is_test] == ["test"]
    assert_every_row_is_counted(done.funnel)


@pytest.mark.parametrize(
    ("parts", "same_as_test"),
    [
        ({"tune": 1, "test": 1, "frozen": 1, "minimum_prompts": 80}, ["tune", "test", "frozen"]),
        ({"tune": 0, "test": 1, "frozen": 1, "minimum_prompts": 20}, ["tune", "test"]),
        ({"tune": 1, "test": 1, "frozen": 0, "minimum_prompts": 20}, ["test", "frozen"]),
    ],
    ids=["too few prompts", "no tune part", "no frozen part"],
)
def test_a_part_that_is_too_small_is_the_test_part(
    tmp_path: Path, hundred: Path, parts: dict[str, float], same_as_test: list[str]
) -> None:
    validation = write(tmp_path / "valid.jsonl", [helpsteer3(number) for number in range(200, 300)])
    done = Run(tmp_path, {"train_data": hundred, "validation_data": validation}, validation_parts=parts)
    found = dict(zip(("tune", "test", "frozen"), _parts(done), strict=True))
    assert [name for name in found if found[name] == found["test"]] == same_as_test
    assert [part.name for part in done.funnel.validation_parts if part.is_test] == same_as_test
    assert [part.share for part in done.funnel.validation_parts] == [parts[name] for name in found]
    assert set.union(*found.values()) == {f"What should I cook for {n} guests this evening?" for n in range(200, 300)}


def test_a_validation_prompt_keeps_its_purpose_when_more_rows_come(tmp_path: Path, hundred: Path) -> None:
    parts = {"tune": 1, "test": 1, "frozen": 1, "minimum_prompts": 5}
    runs = []
    for count in (60, 120):
        rows = [helpsteer3(number) for number in range(200, 200 + count)]
        inputs = {"train_data": hundred, "validation_data": write(tmp_path / f"{count}.jsonl", rows)}
        runs.append(_parts(Run(tmp_path / str(count), inputs, validation_parts=parts)))
    assert all(before < after for before, after in zip(*runs, strict=True))


def test_the_policys_held_out_prompts_are_divided_too(tmp_path: Path) -> None:
    rows = [helpsteer3(number) for number in range(300)]
    settings = {"policy_prompt_fraction": 0.6, "policy_eval_prompt_fraction": 0.5, "validation_fraction": 0.2}
    parts = {"test": 1, "frozen": 1, "minimum_prompts": 10}
    done = Run(tmp_path, {"train_data": write(tmp_path / "a.jsonl", rows)}, validation_parts=parts, **settings)
    judged, frozen = done.prompts("policy_eval_prompts"), done.prompts("policy_frozen_prompts")
    assert len(judged) >= 10 and len(frozen) >= 10 and not judged & frozen
    assert not (judged | frozen) & (done.prompts("train") | done.prompts("policy_train_prompts"))
