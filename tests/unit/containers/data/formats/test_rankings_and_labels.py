"""Answers with ranks, ratings or labels must become the pairs that their makers meant."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from containers.contracts.configs.parts.row_filters import RankingPairs, RowReading
from containers.data.filters.flaws import first_flaw
from containers.data.reader import read_rows
from containers.harness.errors import BadDataError
from tests.unit.containers.data.formats.published_forms import (
    DISTILABEL,
    NECTAR,
    PROMPT,
    RANKING,
    parse,
    sides,
    unpaired,
    written,
)


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("best_and_worst", [("Red.", "Blue.")]),
        ("adjacent", [("Red.", "Grey."), ("Grey.", "Blue.")]),
        ("all", [("Red.", "Grey."), ("Red.", "Blue."), ("Grey.", "Blue.")]),
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        RANKING,
        NECTAR,
        {**DISTILABEL, "generations": ["Blue.", "Red.", "Grey."], "ratings": [2.0, 4.0, 3]},
        {"prompt": PROMPT, "answers": ["Blue.", "Grey.", "Red."], "scores": [-1, 0.5, 7]},
        {"instruction": PROMPT, "completions": [{"response": "Grey.", "overall_score": 5},
                                                {"response": "Red.", "overall_score": 8.0},
                                                {"response": "Blue.", "overall_score": 1}]},
    ],
)  # fmt: skip
def test_a_ranking_gives_the_pairs_that_the_setting_says(
    value: Mapping[str, Any], choice: RankingPairs, wanted: list[tuple[str, str]], tmp_path: Path
) -> None:
    reads = list(read_rows(written(tmp_path, value), RowReading(ranking_pairs=choice)))
    assert sides(reads) == wanted
    assert {read.line for read in reads} == {1}


def test_equal_ranks_are_ties_and_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, {**RANKING, "ranks": [1, 1, 2]})
    flaws = [first_flaw(read.row) for read in read_rows(path, RowReading(ranking_pairs="all")) if read.row]
    assert flaws == ["tie", "", ""]


def test_the_strength_of_ranks_is_their_distance() -> None:
    assert parse(RANKING).pair.margin == 2
    assert parse(NECTAR).pair.margin == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ranks": [1, 2]}, "ranks_not_one_for_each_answer"),
        ({"ranks": None}, "ranks_not_one_for_each_answer"),
        ({"ranks": [1, None, float("nan")]}, "fewer_than_two_scores"),
        ({"ranks": ["1", "2", "3"]}, "fewer_than_two_scores"),
        ({"ranks": [True, False, True]}, "fewer_than_two_scores"),
        ({"completions": "Red."}, "completions_not_a_list"),
        ({"completions": ["", "Red.", "Blue."]}, ""),
        ({"completions": ["Grey.", "", "Blue."]}, "empty_response"),
        ({"completions": [str(n) for n in range(65)], "ranks": list(range(65))}, "too_many_answers"),
        ({"prompt": ""}, "empty_prompt"),
    ],
)
@pytest.mark.parametrize("choice", ["best_and_worst", "all"])
def test_a_ranking_that_cannot_be_read_is_counted_by_reason(
    change: Mapping[str, Any], reason: str, choice: RankingPairs, tmp_path: Path
) -> None:
    reads = list(read_rows(written(tmp_path, RANKING, {**RANKING, **change}), RowReading(ranking_pairs=choice)))
    second = reads[3 if choice == "all" else 1 :]
    assert second
    if reason:
        assert reason in {read.reason for read in second}
    else:  # an answer in the middle concerns only its own pairs
        wanted = ["", "empty_response", "empty_response"] if choice == "all" else [""]
        assert sorted(read.reason for read in second) == wanted


def test_unpaired_completions_become_pairs_where_a_prompt_has_both_labels(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        unpaired("A?", "bad a", False),
        unpaired("B?", [{"role": "assistant", "content": "good b"}], True),
        unpaired("A?", "good a", True),
        unpaired("A?", "better a", 1),
        unpaired("A?", "best a", True),
        unpaired("B?", "bad b", 0.0),
        unpaired("C?", "only c", True),
        unpaired("A?", "worse a", False),
        unpaired("A?", "worst a", False),
    )
    reads = list(read_rows(path))
    assert sides(reads) == [("good a", "bad a"), ("good b", "bad b"), ("better a", "worse a"), ("best a", "worst a")]
    assert [(read.line, read.reason) for read in reads if read.row is None] == [(7, "no_completion_of_other_label")]


@pytest.mark.parametrize("label", [None, "true", 2, -1, float("nan"), [True]])
def test_a_label_that_is_neither_true_nor_false_is_counted(label: object, tmp_path: Path) -> None:
    path = written(tmp_path, unpaired("A?", "x", label), unpaired("A?", "good", True), unpaired("A?", "bad", False))
    assert [read.reason for read in read_rows(path)] == ["label_not_true_or_false", ""]


def test_unpaired_completions_without_any_pair_are_refused_with_what_they_are_good_for(tmp_path: Path) -> None:
    path = written(tmp_path, unpaired("A?", "x", True), unpaired("B?", "y", False))
    with pytest.raises(BadDataError, match=r"no prompt has one labelled true and one labelled false.*loss `kto`"):
        list(read_rows(path))
