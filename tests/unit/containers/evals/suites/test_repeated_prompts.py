"""Several votes on one prompt are no independent evidence: rows that repeat must not make a figure look surer."""

import random
from dataclasses import replace

import pytest

from containers.contracts.certificate import SuiteEvaluation
from containers.contracts.outcome import Metric
from containers.contracts.registries import BENCHMARKS
from containers.evals.scored_suite import ScoredSuite
from containers.evals.suite_evaluation import evaluate_suite
from containers.evals.suites.base import Comparison, Intervals, ScoredItem, SuiteItem, SuiteRows

INTERVALS = Intervals(confidence=0.95, num_bootstrap=1000, seed=7)
COPIES = 6
SUBSETS = {
    "pairs": ["general", "code"],
    "reward_bench": ["alpacaeval-easy", "mt-bench-hard", "donotanswer", "math-prm"],
    "reward_bench_2": ["Factuality", "Precise IF", "Math", "Safety", "Focus"],
    "rm_bench": ["chat", "math", "code", "safety-refuse"],
    "judge_bench": ["mmlu-pro-law", "livebench-reasoning", "livebench-math", "livecodebench"],
    "llmbar": ["Natural", "Adversarial/Neighbor", "Adversarial/GPTInst"],
    "arena": ["all"],
    "truthfulqa": ["Law", "Health"],
    "pku_safety": ["one_safe", "both_unsafe", "should_respond"],
    "verbosity": ["llmbar", "rm_bench"],
}


def _item(name: str, number: int, copy: int) -> SuiteItem:
    num_better, num_worse = {"rm_bench": (3, 3), "reward_bench_2": (1, 3)}.get(name, (1, 1))
    comparisons = tuple(
        Comparison(better, num_better + worse) for better in range(num_better) for worse in range(num_worse)
    )
    return SuiteItem(
        item_id=f"{number:03}:{copy}",
        prompt=({"role": "user", "content": f"Question {number}?"},),
        responses=tuple("x" * (10 + 7 * ((number + place) % 9)) for place in range(num_better + num_worse)),
        subset=SUBSETS[name][number % len(SUBSETS[name])],
        comparisons=() if name == "arena" and number % 4 == 0 else comparisons,
    )


def _evaluated(name: str, *, copies: int) -> SuiteEvaluation:
    """Of 80 prompts, each of which stands there so many times, with the same responses and scores."""
    draw, items = random.Random(5), []  # noqa: S311 - no secret
    for number in range(80):
        first = _item(name, number, 0)
        scores = tuple(draw.gauss(0.8 * (place == 0), 1) for place in range(len(first.responses)))
        items += [ScoredItem(_item(name, number, copy), scores) for copy in range(copies)]
    rows = SuiteRows(items=tuple(entry.item for entry in items), rows_read=len(items))
    suite = ScoredSuite(name=name, benchmark=BENCHMARKS[name], rows=rows).with_scores(items, num_over_long=0)
    strengths = tuple(replace(pair, strength=1.0 + int(pair.prompt_id, 16) % 2) for pair in suite.pairs)
    return evaluate_suite(replace(suite, pairs=strengths), INTERVALS)


def _figures(suite: SuiteEvaluation) -> dict[str, Metric]:
    length = suite.length
    found = {
        "score": suite.score,
        "accuracy": suite.accuracy,
        "margin": suite.mean_margin,
        "loss": suite.log_loss,
        "slope": length.slope,
        "at equal lengths": length.controlled_accuracy,
        **{f"section {metric.name}": metric for metric in suite.sections},
        **{f"subset {metric.name}": metric for metric in suite.subsets},
        **{f"strength {metric.name}": metric for metric in suite.by_strength},
        **{f"length {metric.name}": metric for metric in length.by_length_difference},
    }
    return {name: metric for name, metric in found.items() if metric is not None}


def _width(metric: Metric) -> float:
    assert metric.ci_low is not None and metric.ci_high is not None
    return metric.ci_high - metric.ci_low


@pytest.mark.waits
@pytest.mark.parametrize("name", list(SUBSETS))
def test_rows_that_repeat_change_no_figure_and_narrow_no_interval(name: str) -> None:
    once, repeated = _evaluated(name, copies=1), _evaluated(name, copies=COPIES)
    assert (once.num_items, once.num_prompts) == (80, 80)
    assert (repeated.num_items, repeated.num_prompts) == (80 * COPIES, 80)
    figures = _figures(repeated)
    assert len(figures) >= 8
    for label, wanted in _figures(once).items():
        found = figures[label]
        assert found.value == pytest.approx(wanted.value), label
        assert _width(found) >= 0.999 * _width(wanted), label
        assert _width(found) <= 1.5 * _width(wanted) + 1e-9, label
