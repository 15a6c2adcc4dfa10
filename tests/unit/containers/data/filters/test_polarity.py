"""A set read the other way round trains the opposite, and nothing in the losses shows it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from containers.data.filters.inputs import check_polarity, check_readers
from containers.data.formats.columns import HELPSTEER3, SCHEMAS
from containers.data.rows import PreferenceRow, Value
from containers.harness.errors import BadDataError
from tests.unit.factories.filter_factory import Run, helpsteer3, write

ANNOTATORS = [{"score": -2}, {"score": -1}, {"score": 1}]


def inverted(read: Callable[[Value], PreferenceRow]) -> Callable[[Value], PreferenceRow]:
    def parse(value: Value) -> PreferenceRow:
        if "overall_preference" in value:
            value = {**value, "overall_preference": -int(str(value["overall_preference"]))}
        return read(value)

    return parse


def test_the_readers_of_all_schemas_take_the_better_answer_of_known_rows() -> None:
    check_readers()


def test_a_reader_with_the_wrong_sign_is_a_fault_of_the_program() -> None:
    schemas = [replace(schema, parse=inverted(schema.parse)) for schema in SCHEMAS]
    with pytest.raises(RuntimeError, match=r"HelpSteer3 takes the worse answer .*chosen 'Five\.', rejected 'Four\.'"):
        check_readers(schemas)


def test_labels_against_the_mean_of_the_annotators_stop_the_run_with_the_figures(tmp_path: Path) -> None:
    rows = [
        helpsteer3(number, individual_preference=ANNOTATORS, overall_preference=-2 if number < 40 else 2)
        for number in range(100)
    ]
    with pytest.raises(BadDataError, match=r"agrees with the scores beside it on 40 of 100 rows \(40\.0%\)"):
        Run(tmp_path, {"train_data": write(tmp_path / "rows.jsonl", rows)})


def test_half_of_the_labels_right_goes_on_and_is_recorded(tmp_path: Path) -> None:
    rows = [
        helpsteer3(number, individual_preference=ANNOTATORS, overall_preference=-2 if number < 50 else 2)
        for number in range(100)
    ]
    done = Run(tmp_path, {"train_data": write(tmp_path / "rows.jsonl", rows)})
    (found,) = done.funnel.polarity
    assert (found.num_judged, found.num_agreeing) == (100, 50)


def test_a_few_rows_can_disagree_by_chance() -> None:
    read = HELPSTEER3.parse
    rows = [read(helpsteer3(number, individual_preference=ANNOTATORS, overall_preference=2)) for number in range(10)]
    assert check_polarity("x", rows[:9]) is not None
    with pytest.raises(BadDataError, match="0 of 10 rows"):
        check_polarity("x", rows)


def test_rows_without_scores_say_nothing() -> None:
    read = HELPSTEER3.parse
    assert check_polarity("x", [read(helpsteer3(1)), read(helpsteer3(2, overall_preference=0))]) is None


@pytest.mark.shared_data
def test_real_labels_agree_with_their_annotators(tmp_path: Path, shared_data: Path) -> None:
    done = Run(tmp_path, {"train_data": shared_data / "helpsteer3_schema_train.jsonl.gz"}, check_language_on_text=False)
    (found,) = done.funnel.polarity
    assert found.num_judged > 2700
    assert found.num_agreeing == found.num_judged
