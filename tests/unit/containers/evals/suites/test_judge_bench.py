"""JudgeBench: objective correctness, over all pairs and by kind of question."""

from pathlib import Path

import pytest

from containers.evals.suites.judge_bench import judge
from tests.unit.factories.suite_factory import INTERVALS, judge_bench_row, perfect, read, scored


def test_the_label_says_which_response_is_the_better_one(tmp_path: Path) -> None:
    rows = read(
        "judge_bench",
        tmp_path,
        [judge_bench_row(0, "livecodebench", "A>B"), judge_bench_row(1, "livecodebench", "B>A")],
    )
    assert [item.responses for item in rows.items] == [
        ("First answer 0", "Second answer 0"),
        ("Second answer 1", "First answer 1"),
    ]


def test_every_pair_counts_the_same_and_mmlu_pro_is_knowledge(tmp_path: Path) -> None:
    """Law right, physics and mathematics of MMLU-Pro and one puzzle wrong: 1 of 4, Knowledge 1 of 3."""
    sources = ("mmlu-pro-law", "mmlu-pro-physics", "mmlu-pro-math", "livebench-reasoning")
    rows = read("judge_bench", tmp_path, [judge_bench_row(*row) for row in enumerate(sources)])
    figures = judge(scored(rows, lambda item, place: float(item.subset == "mmlu-pro-law" and place == 0)), INTERVALS)
    assert figures.score is not None
    assert figures.score.value == 0.25
    assert {section.name: section.value for section in figures.sections} == pytest.approx(
        {"Knowledge": 1 / 3, "Reasoning": 0.0}
    )
    assert figures.missing == ("Math", "Coding")
    assert {subset.name for subset in figures.subsets} == set(sources)


@pytest.mark.parametrize("label", ["A>B", "B>A"])
def test_equal_scores_are_wrong_whatever_the_order_of_the_responses(label: str, tmp_path: Path) -> None:
    rows = read("judge_bench", tmp_path, [judge_bench_row(0, "livebench-math", label)])
    figures = judge(scored(rows, lambda item, place: 1.0), INTERVALS)
    assert figures.score is not None
    assert figures.score.value == 0


def test_the_columns_of_the_short_form_are_understood(tmp_path: Path) -> None:
    row = judge_bench_row(0, "livebench-math")
    short = {
        "id": "x-1",
        "subset": row["source"],
        **{name: row[name] for name in ("question", "response_A", "response_B", "label")},
    }
    rows = read("judge_bench", tmp_path, [short])
    assert rows.items[0].item_id == "x-1"
    figures = judge(scored(rows, perfect), INTERVALS)
    assert [section.name for section in figures.sections] == ["Math"]


@pytest.mark.parametrize("label", ["A=B", "a>b", "", None, 1])
def test_another_label_is_left_out(label: object, tmp_path: Path) -> None:
    row = {**judge_bench_row(0, "livebench-math"), "label": label}
    rows = read("judge_bench", tmp_path, [row, judge_bench_row(1, "livebench-math")])
    assert len(rows.items) == 1
    assert set(rows.left_out) <= {"label_unknown", "label_not_text"}
