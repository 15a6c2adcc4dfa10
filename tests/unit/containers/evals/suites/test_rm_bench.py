"""RM-Bench: what counts is whether substance beats style, by the published 3 x 3 grid."""

from pathlib import Path

import numpy as np
import pytest

from containers.evals.suites.base import ScoredItem
from containers.evals.suites.rm_bench import judge
from tests.unit.factories.suite_factory import INTERVALS, read, rm_bench_row, scored


def test_one_item_by_hand(tmp_path: Path) -> None:
    """Right 1, 2, 3 and wrong 0.5, 2, 2.5 (concise to markdown).

    Easy: plain > concise, markdown > concise, markdown > plain: 3 of 3. Normal: concise and markdown, but plain is a
    tie: 2 of 3. Hard: concise loses to both, plain to markdown: 0 of 3.
    """
    rows = read("rm_bench", tmp_path, [rm_bench_row(0, "chat")])
    figures = judge([ScoredItem(rows.items[0], (1.0, 2.0, 3.0, 0.5, 2.0, 2.5))], INTERVALS)
    assert {figure.name: figure.value for figure in figures.subsets} == pytest.approx(
        {"chat easy": 1.0, "chat normal": 2 / 3, "chat hard": 0.0}
    )
    assert figures.score is not None
    assert figures.score.value == pytest.approx(5 / 9)
    assert figures.missing == ("math", "code", "safety-refuse", "safety-response")


def test_a_model_that_likes_length_is_easy_and_not_hard(tmp_path: Path) -> None:
    rows = read("rm_bench", tmp_path, [rm_bench_row(number, "code") for number in range(3)])
    figures = judge(scored(rows, lambda item, place: float(place % 3)), INTERVALS)
    sections = {section.name: section.value for section in figures.sections}
    assert (sections["easy"], sections["normal"], sections["hard"]) == (1.0, 0.0, 0.0)


def test_the_domains_weigh_the_same_and_both_kinds_of_safety_are_one(tmp_path: Path) -> None:
    """Chat right, code wrong; safety pooled: 1 of 4 items right. The mean of 1, 0 and 0.25."""
    domains = ("chat", "code", "code", "safety-refuse", "safety-refuse", "safety-refuse", "safety-response")
    rows = read("rm_bench", tmp_path, [rm_bench_row(*row) for row in enumerate(domains)])
    right = {"chat", "safety-response"}
    figures = judge(scored(rows, lambda item, place: float(item.subset in right and place < 3)), INTERVALS)
    sections = {section.name: section.value for section in figures.sections}
    assert sections == pytest.approx(
        {"chat": 1.0, "code": 0.0, "safety": 0.25, "easy": 1.25 / 3, "normal": 1.25 / 3, "hard": 1.25 / 3}
    )
    assert figures.score is not None
    assert figures.score.value == pytest.approx(1.25 / 3)
    assert figures.score.count == 7
    assert figures.missing == ("math",)


def test_the_grid_agrees_with_the_matrix_of_the_published_recipe(tmp_path: Path) -> None:
    dice = np.random.default_rng(3)
    rows = read("rm_bench", tmp_path, [rm_bench_row(number, "math") for number in range(40)])
    scores = dice.integers(0, 4, size=(40, 6)).astype(float)
    figures = judge([ScoredItem(item, tuple(line)) for item, line in zip(rows.items, scores, strict=True)], INTERVALS)
    matrix = (scores[:, :3, None] > scores[:, None, 3:]).mean(axis=0)
    assert {figure.name: figure.value for figure in figures.subsets} == pytest.approx(
        {
            "math easy": np.tril(matrix, -1).sum() / 3,
            "math normal": np.trace(matrix) / 3,
            "math hard": np.triu(matrix, 1).sum() / 3,
        }
    )


def test_every_comparison_says_which_styles_it_compares(tmp_path: Path) -> None:
    (item,) = read("rm_bench", tmp_path, [rm_bench_row(0, "chat")]).items
    cells = {pair.cell: (item.responses[pair.better], item.responses[pair.worse]) for pair in item.comparisons}
    assert len(cells) == 9
    assert cells["concise-detailed_markdown"] == ("Right answer 0, concise", "Wrong answer 0, detailed markdown")


def test_items_without_three_styles_are_left_out(tmp_path: Path) -> None:
    row = rm_bench_row(0, "chat")
    rows = read("rm_bench", tmp_path, [{**row, "chosen": row["chosen"][:2]}, rm_bench_row(1, "chat")])
    assert rows.left_out == {"not_three_styles": 1}


def test_the_same_problem_in_two_languages_is_two_items(tmp_path: Path) -> None:
    row = rm_bench_row(0, "code")
    other = {**row, "prompt": "The same in Rust", "chosen": [f"fn {text}" for text in row["chosen"]]}
    assert len(read("rm_bench", tmp_path, [row, other]).items) == 2
