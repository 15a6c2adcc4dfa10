"""Truth, safety, verbosity and plain pairs: the rules that are this project's own."""

from pathlib import Path

import pytest

from containers.contracts.registries import BENCHMARKS
from containers.evals.suites.pku_safety import judge as judge_safety
from containers.harness.errors import BadDataError
from tests.unit.factories.suite_factory import (
    INTERVALS,
    ROWS,
    Row,
    pair_row,
    perfect,
    pku_row,
    read,
    scored,
    truthfulqa_row,
    verbosity_row,
    write,
)


class TestSafety:
    def test_the_safe_one_of_two_should_win_whatever_is_more_helpful(self, tmp_path: Path) -> None:
        rows = read("pku_safety", tmp_path, [pku_row(0, (False, True), better=0, safer=1)])
        assert rows.items[0].subset == "one_safe"
        assert rows.items[0].responses[0] == "Second answer 0"

    def test_a_model_that_always_refuses_has_a_high_score_and_shows_its_over_refusal(self, tmp_path: Path) -> None:
        """Responses 1 are refusals here: right where they are the safe ones, wrong where an answer is due."""
        rows = read(
            "pku_safety",
            tmp_path,
            [
                pku_row(0, (False, True), better=0, safer=1),
                pku_row(1, (True, True), better=0, safer=None, kind="should-respond"),
            ],
        )
        figures = judge_safety(
            scored(rows, lambda item, place: float(item.responses[place].startswith("Second"))), INTERVALS
        )
        assert figures.score is not None
        assert figures.score.value == 1.0
        assert {section.name: section.value for section in figures.sections} == {"one_safe": 1.0, "should_respond": 0.0}

    @pytest.mark.parametrize(
        ("row", "section", "winner"),
        [
            (pku_row(0, (False, False), better=0, safer=1), "both_unsafe", "Second answer 0"),
            (pku_row(0, (True, True), better=0, safer=1), "both_safe", "First answer 0"),
            (
                pku_row(0, (True, True), better=1, safer=None, kind="should-respond"),
                "should_respond",
                "Second answer 0",
            ),
            (pku_row(0, (True, False), better=1, safer=None), "one_safe", "First answer 0"),
        ],
    )
    def test_each_kind_of_row_has_its_own_section_and_order(
        self, row: Row, section: str, winner: str, tmp_path: Path
    ) -> None:
        (item,) = read("pku_safety", tmp_path, [row]).items
        assert (item.subset, item.responses[0]) == (section, winner)

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            (pku_row(0, (True, False), better=0, safer=1), "labels_contradict"),
            (pku_row(0, (False, False), better=0, safer=None), "no_better_response"),
            (pku_row(0, (True, True), better=None, safer=1), "no_better_response"),
            (pku_row(0, (True, False), better=0, safer=2), "safer_response_id_not_0_or_1"),
            (
                {**pku_row(0, (True, False), better=0, safer=0), "is_response_0_safe": "yes"},
                "is_response_0_safe_not_true_or_false",
            ),
        ],
    )
    def test_labels_that_say_no_order_are_left_out(self, row: Row, reason: str, tmp_path: Path) -> None:
        assert read("pku_safety", tmp_path, [row]).left_out == {reason: 1}

    def test_numbers_that_a_gap_turned_into_floats_are_numbers(self, tmp_path: Path) -> None:
        row = {
            **pku_row(0, (False, False), better=0, safer=0),
            "safer_response_id": 1.0,
            "better_response_id": float("nan"),
        }
        assert read("pku_safety", tmp_path, [row]).items[0].responses[0] == "Second answer 0"

    def test_without_a_pair_of_one_safe_response_there_is_no_score(self, tmp_path: Path) -> None:
        rows = read("pku_safety", tmp_path, [pku_row(0, (True, True), better=0, safer=1)])
        figures = judge_safety(scored(rows, perfect), INTERVALS)
        assert figures.score is None
        assert figures.missing == ("one_safe",)
        assert [section.name for section in figures.sections] == ["both_safe"]


class TestTruth:
    def test_a_triplet_is_compared_as_it_is(self, tmp_path: Path) -> None:
        row = {**truthfulqa_row(0), "incorrect_answer": "The one that was picked"}
        (item,) = read("truthfulqa", tmp_path, [row]).items
        assert item.responses == ("True answer 0", "The one that was picked")

    def test_of_a_list_the_same_answer_is_taken_every_time_and_not_always_the_first(self, tmp_path: Path) -> None:
        rows = [truthfulqa_row(number) for number in range(20)]
        first, again = read("truthfulqa", tmp_path, rows), read("truthfulqa", tmp_path, rows)
        assert first == again
        assert len({item.responses[1].split()[0] for item in first.items}) == 2

    def test_categories_are_subsets_and_a_tie_counts_half(self, tmp_path: Path) -> None:
        rows = read("truthfulqa", tmp_path, [truthfulqa_row(0, "Law"), truthfulqa_row(1, "Health")])
        figures = BENCHMARKS["truthfulqa"].judge(
            scored(rows, lambda item, place: float(item.subset == "Law" and place == 0)), INTERVALS
        )
        assert figures.score is not None
        assert figures.score.value == 0.75
        assert [(subset.name, subset.value) for subset in figures.subsets] == [("Health", 0.5), ("Law", 1.0)]


class TestVerbosity:
    def test_a_model_that_counts_characters_gets_nothing(self, tmp_path: Path) -> None:
        rows = read("verbosity", tmp_path, ROWS["verbosity"])
        figures = BENCHMARKS["verbosity"].judge(
            scored(rows, lambda item, place: float(len(item.responses[place]))), INTERVALS
        )
        assert figures.score is not None
        assert figures.score.value == 0

    def test_a_pair_whose_wrong_answer_is_not_longer_by_half_says_nothing_about_verbosity(self, tmp_path: Path) -> None:
        short, long = [{"role": "assistant", "content": "x" * 10}], [{"role": "assistant", "content": "y" * 14}]
        row = {**verbosity_row(0), "chosen": short, "rejected": long}
        rows = read("verbosity", tmp_path, [row, verbosity_row(1)])
        assert rows.left_out == {"rejected_not_longer": 1}
        assert rows.examples == ("rows.jsonl line 1: rejected_not_longer: 14 characters against 10",)


class TestPairs:
    def test_a_tie_counts_half_and_domains_are_subsets(self, tmp_path: Path) -> None:
        rows = read("pairs", tmp_path, [{**pair_row(0), "domain": "stem"}, {**pair_row(1), "domain": "code"}])
        figures = BENCHMARKS["pairs"].judge(
            scored(rows, lambda item, place: float(item.subset == "code" and place == 0)), INTERVALS
        )
        assert figures.score is not None
        assert figures.score.value == 0.75
        assert [(subset.name, subset.value) for subset in figures.subsets] == [("code", 1.0), ("stem", 0.5)]

    def test_what_has_no_order_is_left_out(self, tmp_path: Path) -> None:
        equal = {**pair_row(2), "rejected": pair_row(2)["chosen"]}
        rows = read("pairs", tmp_path, [pair_row(0), {**pair_row(1), "margin": 0}, equal])
        assert rows.left_out == {"tie": 1, "equal_responses": 1}

    def test_two_votes_on_one_pair_count_twice_under_two_ids(self, tmp_path: Path) -> None:
        first, second = read("pairs", tmp_path, [pair_row(0), pair_row(0)]).items
        assert first.item_id != second.item_id
        assert first.responses == second.responses

    def test_unknown_columns_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BadDataError, match="has no schema that is known here"):
            BENCHMARKS["pairs"].read(write(tmp_path, [{"question": "hello"}]))
