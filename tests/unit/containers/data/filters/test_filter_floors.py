"""Too few pairs: the error must name what took them from the source that fell short, or people turn the wrong knob."""

from pathlib import Path
from typing import Any

import pytest

from containers.harness.errors import BadDataError
from tests.unit.factories.filter_factory import GERMAN, Run, helpsteer3, write, write_hundred


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    return write_hundred(tmp_path)


def test_too_many_malformed_rows_fail_with_reasons_and_first_lines(tmp_path: Path, hundred: Path) -> None:
    hundred.write_text("broken\n" + hundred.read_text() + "\n\n")
    with pytest.raises(BadDataError) as caught:
        Run(tmp_path, {"train_data": hundred}, max_malformed_fraction=0.005)
    assert "1 of 103 rows (1.0%) are malformed" in str(caught.value)
    assert "filter_dataset.max_malformed_fraction allows 0.5%" in str(caught.value)
    assert "invalid_json: 1 (train_data:1 broken)" in str(caught.value)


def test_a_language_that_drops_everything_shows_the_values_seen(tmp_path: Path, hundred: Path) -> None:
    with pytest.raises(BadDataError) as caught:
        Run(tmp_path, {"train_data": hundred}, languages=("german",))
    message = str(caught.value)
    assert "0 training pairs (filter_dataset.minimum_train_pairs: 1)" in message
    assert "`language` holds: english 100. filter_dataset.languages asks for: german." in message
    assert any(line.split()[:4] == ["language_column", "100", "100", "0"] for line in message.splitlines())


def test_too_few_prompts_for_the_policy_are_refused_before_anything_is_trained(tmp_path: Path, hundred: Path) -> None:
    with pytest.raises(BadDataError, match=r"at least 2 of each are wanted"):
        Run(tmp_path, {"train_data": hundred}, policy_prompt_fraction=0.001, minimum_policy_prompts=2)


def test_a_floor_names_the_numbers_and_the_setting(tmp_path: Path, hundred: Path) -> None:
    with pytest.raises(BadDataError, match=r"minimum_train_pairs: 1,000"):
        Run(tmp_path / "1", {"train_data": hundred}, minimum_train_pairs=1000)
    with pytest.raises(BadDataError, match=r"raise filter_dataset\.validation_fraction"):
        Run(tmp_path / "2", {"train_data": hundred}, minimum_validation_pairs=50)


def test_prompts_that_a_split_keeps_together_are_named_where_they_leave_one_side_too_small(tmp_path: Path) -> None:
    question = (
        "Natalia sold clips to many of her friends in April and then half as many clips in May, how many is that?"
    )
    wordings = [f"The {n}th pupil of {n + 3} asks: {question} Tell class {n} of {n + 5}." for n in range(60)]
    prompts = [*wordings, "Which bus goes there?", "Who wrote this book?"]
    rows = [helpsteer3(n, context=[{"role": "user", "content": prompt}]) for n, prompt in enumerate(prompts)]
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(
        BadDataError, match=r"97% of the prompts are alike.* set filter_dataset\.similar_prompts to report"
    ):
        Run(
            tmp_path / "1",
            {"train_data": path},
            validation_fraction=0.3,
            minimum_validation_pairs=10,
            minimum_train_pairs=10,
        )
    done = Run(
        tmp_path / "2",
        {"train_data": path},
        validation_fraction=0.3,
        minimum_validation_pairs=10,
        minimum_train_pairs=10,
        similar_prompts="report",
    )
    assert done.funnel.validation_pairs >= 10
    # Of too few rows it is the filters that left too few.
    with pytest.raises(BadDataError, match=r"raise filter_dataset\.validation_fraction"):
        Run(tmp_path / "3", {"train_data": path}, validation_fraction=0.3, minimum_validation_pairs=100)


def test_an_empty_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match="holds no row at all"):
        Run(tmp_path, {"train_data": write(tmp_path / "empty.jsonl", [])})


def test_nothing_is_written_by_a_run_that_fails(tmp_path: Path, hundred: Path) -> None:
    with pytest.raises(BadDataError):
        Run(tmp_path, {"train_data": hundred}, minimum_train_pairs=1000)
    assert list((tmp_path / "work" / "filter_dataset" / "output").iterdir()) == []


def _two_sources(tmp_path: Path, *, train: dict[str, Any], validation: dict[str, Any]) -> dict[str, Path]:
    """40 training rows and 100 validation rows, each with its changes."""
    return {
        "train_data": write(tmp_path / "train.jsonl", [helpsteer3(number, **train) for number in range(40)]),
        "validation_data": write(
            tmp_path / "valid.jsonl", [helpsteer3(number, **validation) for number in range(200, 300)]
        ),
    }


@pytest.mark.parametrize(
    ("changes", "settings", "advice"),
    [
        (
            {"language": "german"},
            {},
            "`language_column` dropped the most of the training source. `language` holds: german 40. "
            "filter_dataset.languages asks for: english.",
        ),
        (
            {"response1": GERMAN},
            {},
            "`detected_language` dropped the most of the training source. The texts themselves are not in english.",
        ),
        (
            {"overall_preference": 0},
            {},
            "`tie` dropped the most of the training source. These rows prefer neither response",
        ),
        (
            {"response1": "A long answer about soup and bread. " * 20},
            {"max_characters": 500},
            "`over_long_characters` dropped the most of the training source. filter_dataset.max_characters is 500",
        ),
    ],
)
def test_validation_rows_that_pass_do_not_hide_what_took_every_training_row(
    tmp_path: Path, changes: dict[str, Any], settings: dict[str, Any], advice: str
) -> None:
    with pytest.raises(BadDataError) as caught:
        Run(tmp_path, _two_sources(tmp_path, train=changes, validation={}), **settings)
    message = str(caught.value)
    assert advice in message
    assert "0 training pairs (filter_dataset.minimum_train_pairs: 1)" in message
    assert "The training source:" in message and "The validation source:" not in message
    reason = advice.split("`")[1]
    assert [line.split()[1:4] for line in message.splitlines() if line.startswith(reason)] == [["40", "40", "0"]]


def test_a_validation_source_that_falls_short_is_judged_by_its_own_rows(tmp_path: Path) -> None:
    ties = {"overall_preference": 0}
    with pytest.raises(BadDataError) as caught:
        Run(tmp_path, _two_sources(tmp_path, train={}, validation=ties))
    assert "`tie` dropped the most of the validation source." in str(caught.value)
    assert "training source" not in str(caught.value)


def test_sources_that_both_fall_short_each_get_their_table_and_their_advice(tmp_path: Path) -> None:
    inputs = _two_sources(tmp_path, train={"language": "german"}, validation={"overall_preference": 0})
    with pytest.raises(BadDataError) as caught:
        Run(tmp_path, inputs)
    message = str(caught.value)
    assert "`language_column` dropped the most of the training source. `language` holds: german 40." in message
    assert "`tie` dropped the most of the validation source." in message
    assert message.index("The training source:") < message.index("The validation source:")


def test_many_small_losses_are_told_from_few(tmp_path: Path) -> None:
    """No filter alone took as many rows as are left, and yet they took most of the source."""
    kinds: list[dict[str, Any]] = [{"language": "german"}, {"overall_preference": 0}, {"response1": GERMAN}, {}]
    rows = [helpsteer3(number, **kinds[number % 4]) for number in range(40)]
    with pytest.raises(BadDataError) as caught:
        Run(tmp_path, {"train_data": write(tmp_path / "train.jsonl", rows)}, minimum_train_pairs=20)
    assert "took less than half" not in str(caught.value)
    assert "`language_column` dropped the most of the training source." in str(caught.value)


def test_an_empty_training_file_beside_a_good_validation_file_is_named(tmp_path: Path) -> None:
    inputs = {**_two_sources(tmp_path, train={}, validation={}), "train_data": write(tmp_path / "empty.jsonl", [])}
    with pytest.raises(BadDataError, match="The training source holds no row at all"):
        Run(tmp_path, inputs)


def test_malformed_rows_count_for_the_source_that_they_came_from(tmp_path: Path) -> None:
    inputs = _two_sources(tmp_path, train={"response1": 5}, validation={})
    with pytest.raises(BadDataError, match="`response_not_text` dropped the most of the training source"):
        Run(tmp_path, inputs, max_malformed_fraction=1)
