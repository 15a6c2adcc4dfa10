"""What every benchmark keeps, whatever its rule: extremes, order of rows, refusal of scores that are no numbers."""

import math
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from containers.contracts.registries import BENCHMARKS, BenchmarkName
from containers.evals.suites.base import ScoredItem, SuiteRows
from containers.harness.errors import DivergedError
from tests.unit.factories.suite_factory import INTERVALS, ROWS, inverted, perfect, read, scored

NAMES = tuple(BENCHMARKS)
# The published rule of Ties adds up to 0.01 for the size of the gap.
PERFECT = {"reward_bench_2": (5 + 1.01) / 6}
INVERTED = {"reward_bench_2": -0.01 / 6}


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SuiteRows]:
    return {name: read(name, tmp_path_factory.mktemp(name), rows) for name, rows in ROWS.items()}


def test_every_benchmark_is_registered_under_its_own_name_and_says_its_tie_rule_and_source() -> None:
    assert set(BENCHMARKS) == set(ROWS) == set(get_args(BenchmarkName))
    for name, benchmark in BENCHMARKS.items():
        assert benchmark.name == name
        assert benchmark.title
        assert benchmark.tie_rule.endswith(".")
        assert benchmark.source


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_the_real_schema_becomes_an_item(name: str, suites: dict[str, SuiteRows]) -> None:
    rows = suites[name]
    assert len(rows.items) == len(ROWS[name])
    assert not rows.left_out
    assert len({item.item_id for item in rows.items}) == len(rows.items)
    assert [item.line for item in rows.items] == list(range(1, len(rows.items) + 1))
    for item in rows.items:
        assert item.prompt[-1]["role"] == "user"
        assert all(item.responses)


@pytest.mark.parametrize("name", NAMES)
def test_a_perfect_model_gets_one_and_an_inverted_one_nothing(name: str, suites: dict[str, SuiteRows]) -> None:
    judge = BENCHMARKS[name].judge
    best, worst = judge(scored(suites[name], perfect), INTERVALS), judge(scored(suites[name], inverted), INTERVALS)
    assert best.score is not None
    assert worst.score is not None
    assert best.score.name == "score"
    assert best.score.value == pytest.approx(PERFECT.get(name, 1.0))
    assert worst.score.value == pytest.approx(INVERTED.get(name, 0.0))
    assert {figure.value for figure in best.subsets} <= {1.0}
    assert {figure.value for figure in worst.subsets} <= {0.0}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(data=st.data())
def test_the_order_of_the_items_changes_no_figure(name: str, suites: dict[str, SuiteRows], data: st.DataObject) -> None:
    score = st.integers(-2, 2).map(float)
    entries = [ScoredItem(item, tuple(data.draw(score) for _ in item.responses)) for item in suites[name].items]
    judge = BENCHMARKS[name].judge
    assert judge(data.draw(st.permutations(entries)), INTERVALS) == judge(entries, INTERVALS)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(data=st.data())
def test_every_figure_has_an_interval_and_says_how_many_items_it_rests_on(
    name: str, suites: dict[str, SuiteRows], data: st.DataObject
) -> None:
    score = st.floats(-5, 5)
    entries = [ScoredItem(item, tuple(data.draw(score) for _ in item.responses)) for item in suites[name].items]
    figures = BENCHMARKS[name].judge(entries, INTERVALS)
    assert figures.score is not None
    for metric in (figures.score, *figures.sections, *figures.subsets):
        assert metric.unit == "fraction"
        assert metric.ci_low is not None
        assert metric.ci_high is not None
        assert metric.ci_low <= metric.ci_high
        assert metric.count is not None
        assert 0 < metric.count <= len(entries)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_refused_with_the_item_named(
    name: str, bad: float, suites: dict[str, SuiteRows]
) -> None:
    entries = scored(suites[name], perfect)
    broken = entries[-1].item
    entries[-1] = ScoredItem(broken, (*entries[-1].scores[:-1], bad))
    with pytest.raises(DivergedError) as caught:
        BENCHMARKS[name].judge(entries, INTERVALS)
    assert broken.item_id in str(caught.value)
    assert str(bad) in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_score_too_few_is_refused(name: str, suites: dict[str, SuiteRows]) -> None:
    entries = scored(suites[name], perfect)
    entries[0] = ScoredItem(entries[0].item, entries[0].scores[:-1])
    with pytest.raises(ValueError, match="responses"):
        BENCHMARKS[name].judge(entries, INTERVALS)


@pytest.mark.parametrize("name", NAMES)
def test_without_an_item_there_is_no_score(name: str) -> None:
    figures = BENCHMARKS[name].judge([], INTERVALS)
    assert figures.score is None
    assert figures.sections == ()
    assert figures.subsets == ()


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_file_has_no_items(name: str, tmp_path: Path) -> None:
    assert read(name, tmp_path, []).items == ()
