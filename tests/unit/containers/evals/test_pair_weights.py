"""Figures over pairs weigh what the suite's score weighs, however many comparisons an item has."""

import numpy as np
import pytest

from containers.contracts.registries import BENCHMARKS
from containers.evals.scored_suite import ScoredSuite
from containers.evals.suite_evaluation import evaluate_suite, score_moments
from containers.evals.suites.base import Comparison, Intervals, ScoredItem, SuiteItem, SuiteRows

INTERVALS = Intervals(confidence=0.95, num_bootstrap=100, seed=0)


def _item(name: str, subset: str, *, right: int, wrong: int, is_right: bool) -> ScoredItem:
    """An item whose right answers all score above its wrong ones, or below."""
    comparisons = tuple(Comparison(one, right + other) for one in range(right) for other in range(wrong))
    prompt = ({"role": "user", "content": name},)
    responses = tuple(f"answer {number} {'x' * number}" for number in range(right + wrong))
    item = SuiteItem(name, prompt, responses, subset=subset, comparisons=comparisons)
    high, low = (1.0, 0.0) if is_right else (0.0, 1.0)
    return ScoredItem(item, (high,) * right + (low,) * wrong)


def _suite(benchmark: str, items: list[ScoredItem]) -> ScoredSuite:
    empty = ScoredSuite("suite", BENCHMARKS[benchmark], SuiteRows(tuple(item.item for item in items), len(items)))
    return empty.with_scores(items, num_over_long=0)


def test_ties_with_hundreds_of_pairs_are_a_sixth_of_the_accuracy_as_they_are_of_the_score() -> None:
    subsets = ("Factuality", "Precise IF", "Math", "Safety", "Focus")
    items = [
        _item(f"{subset}:{number}", subset, right=1, wrong=3, is_right=True)
        for subset in subsets
        for number in range(10)
    ]
    for number in range(5):
        items.append(_item(f"Ties:ref:{number}", "Ties", right=1, wrong=10, is_right=False))
        items.append(_item(f"Ties:tied:{number}", "Ties", right=10, wrong=10, is_right=False))
    suite = _suite("reward_bench_2", items)
    assert len(suite.pairs) == 150 + 550
    found = evaluate_suite(suite, INTERVALS)
    assert found.accuracy is not None and found.score is not None
    assert found.accuracy.value == pytest.approx(5 / 6)
    assert found.score.value == pytest.approx(5 / 6, abs=0.01)
    assert found.accuracy.count == 700
    margins = np.array([pair.margin for pair in suite.pairs])
    weights = np.array([pair.weight for pair in suite.pairs])
    assert found.mean_margin is not None
    assert found.mean_margin.value == pytest.approx(float(np.average(margins, weights=weights)))
    assert weights.mean() == pytest.approx(1)


def test_sections_count_as_in_the_score() -> None:
    right = [_item(f"a{number}", "alpacaeval-easy", right=1, wrong=1, is_right=True) for number in range(30)]
    wrong = [_item(f"b{number}", "donotanswer", right=1, wrong=1, is_right=False) for number in range(10)]
    found = evaluate_suite(_suite("reward_bench", right + wrong), INTERVALS)
    assert found.accuracy is not None and found.score is not None
    assert (found.accuracy.value, found.score.value) == (pytest.approx(0.5), pytest.approx(0.5))


def test_plain_pairs_count_the_same() -> None:
    items = [_item(f"p{number}", "all", right=1, wrong=1, is_right=number % 4 > 0) for number in range(40)]
    suite = _suite("pairs", items)
    assert {pair.weight for pair in suite.pairs} == {1.0}
    found = evaluate_suite(suite, INTERVALS)
    assert found.accuracy is not None and found.accuracy.value == 0.75


def test_the_standard_deviation_of_the_scores_is_of_items_not_of_their_pairs() -> None:
    """Hundreds of pairs of Ties with scores far apart are a sixth of it; effects on length are in its units."""
    subsets = ("Factuality", "Precise IF", "Math", "Safety", "Focus")
    items = [
        _item(f"{subset}:{number}", subset, right=1, wrong=3, is_right=True)
        for subset in subsets
        for number in range(10)
    ]
    for number in range(5):
        for kind, right in (("ref", 1), ("tied", 10)):
            tie = _item(f"Ties:{kind}:{number}", "Ties", right=right, wrong=10, is_right=True)
            items.append(ScoredItem(tie.item, tuple(10 * score for score in tie.scores)))
    mean, spread = score_moments(_suite("reward_bench_2", items).pairs)
    # Half of the scores of each pair are 0; the others 1, in Ties 10.
    expected = (5 / 6 * 1 + 1 / 6 * 10) / 2
    assert mean == pytest.approx(expected)
    assert spread == pytest.approx(((5 / 6 * 1 + 1 / 6 * 100) / 2 - expected**2) ** 0.5)
    assert score_moments([]) == (0.0, 0.0)
