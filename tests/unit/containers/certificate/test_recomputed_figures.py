"""Each kind of figure, computed again from the stored items by other people's code: pandas, scipy, statsmodels."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.contingency_tables import mcnemar

from containers.contracts.certificate import SuiteEvaluation
from containers.contracts.outcome import Metric
from containers.contracts.registries import BENCHMARKS
from containers.evals.item_scores import read_item_scores, write_item_scores
from containers.evals.scored_suite import ScoredSuite
from containers.evals.suite_difference import suite_difference
from containers.evals.suite_evaluation import evaluate_suite
from containers.evals.suites.base import Comparison, Intervals, ScoredItem, SuiteItem, SuiteRows
from containers.evals.suites.reward_bench import SECTIONS

INTERVALS = Intervals(confidence=0.95, num_bootstrap=400, seed=0)


def _items(benchmark: str, *, seed: int, skill: float) -> list[ScoredItem]:
    """Pairs of 60 prompts, one to five of each, whose right answers score higher by about `skill`."""
    rows, drawn = np.random.default_rng(5), np.random.default_rng(seed)
    subsets = [name for section in SECTIONS.values() for name in section] if benchmark == "reward_bench" else ["all"]
    items = []
    for prompt in range(60):
        ease = drawn.normal()
        for number in range(int(rows.integers(1, 6))):
            lengths = rows.integers(5, 200, size=2)
            item = SuiteItem(
                f"{prompt}-{number}",
                ({"role": "user", "content": f"question {prompt}"},),
                ("a" * int(lengths[0]), "b" * int(lengths[1])),
                subset=subsets[prompt % len(subsets)],
                comparisons=(Comparison(0, 1),),
            )
            better, worse = skill + 0.5 * ease + drawn.normal() + 0.003 * lengths[0], drawn.normal()
            items.append(ScoredItem(item, (float(better), float(worse))))
    return items


def _stored(folder: Path, benchmark: str, *, seed: int = 1, skill: float = 0.8) -> tuple[SuiteEvaluation, pd.DataFrame]:
    """The evaluation of a suite, and the table of its pairs as it lies beside the certificate."""
    items = _items(benchmark, seed=seed, skill=skill)
    rows = SuiteRows(tuple(scored.item for scored in items), len(items))
    suite = ScoredSuite("suite", BENCHMARKS[benchmark], rows).with_scores(items, num_over_long=0)
    suite.write_pair_scores(folder / f"pairs-{seed}.parquet")
    write_item_scores(suite.items, folder / f"items-{seed}.parquet")
    table = pd.read_parquet(folder / f"pairs-{seed}.parquet")
    assert np.allclose(table["margin"], table["score_chosen"] - table["score_rejected"])
    return evaluate_suite(suite, INTERVALS), table


def _clustered(values: pd.Series, prompts: pd.Series) -> tuple[float, float]:
    """Mean and standard error over clusters."""
    fitted = OLS(values.to_numpy(), np.ones(len(values))).fit(
        cov_type="cluster", cov_kwds={"groups": pd.factorize(prompts)[0]}
    )
    return float(fitted.params[0]), float(fitted.bse[0])


def _parts(values: pd.Series, prompts: pd.Series) -> np.ndarray:
    """What each prompt adds to the error of the mean."""
    return (values - values.mean()).groupby(prompts.to_numpy()).sum().to_numpy()


def _is(metric: Metric | None, value: float, low: float, high: float) -> None:
    assert metric is not None
    assert (metric.value, metric.ci_low, metric.ci_high) == pytest.approx((value, low, high), rel=1e-6)


def test_a_mean_has_the_clustered_error_and_students_interval(tmp_path: Path) -> None:
    evaluation, table = _stored(tmp_path, "pairs")
    for metric, values in (
        (evaluation.mean_margin, table["margin"]),
        (evaluation.log_loss, pd.Series(-special.log_expit(table["margin"]))),
    ):
        mean, error = _clustered(values, table["prompt_id"])
        parts = _parts(values, table["prompt_id"])
        kurtosis = float((parts**4).mean() / (parts**2).mean() ** 2)
        degrees = min(2 * parts.size / (kurtosis - 1), parts.size - 1)
        _is(metric, mean, *stats.t.interval(0.95, degrees, loc=mean, scale=error))
        assert metric is not None and metric.num_prompts == table["prompt_id"].nunique() == 60


def test_an_accuracy_has_the_exact_interval_of_as_many_independent_pairs(tmp_path: Path) -> None:
    evaluation, table = _stored(tmp_path, "pairs")
    right = (table["margin"] > 0).astype(float)
    share, error = _clustered(right, table["prompt_id"])
    parts = _parts(right, table["prompt_id"])
    telling = (parts**2).sum() ** 2 / (parts**4).sum()
    students = stats.t.ppf(0.975, min(telling - 1, parts.size - 1))
    count = share * (1 - share) / error**2 * (stats.norm.ppf(0.975) / students) ** 2
    low = stats.beta.ppf(0.025, share * count, (1 - share) * count + 1)
    high = stats.beta.ppf(0.975, share * count + 1, (1 - share) * count)
    _is(evaluation.accuracy, share, low, high)
    _is(evaluation.score, share, low, high)


def test_sections_are_weighted_means_of_their_subsets(tmp_path: Path) -> None:
    evaluation, table = _stored(tmp_path, "reward_bench")
    means = (table["margin"] > 0).groupby(table["subset"]).mean()
    sections = {
        name: sum(weight * means[subset] for subset, weight in weights.items()) / sum(weights.values())
        for name, weights in SECTIONS.items()
    }
    assert {metric.name: metric.value for metric in evaluation.sections} == pytest.approx(sections)
    assert evaluation.score is not None and evaluation.score.value == pytest.approx(np.mean(list(sections.values())))
    assert evaluation.accuracy is not None
    assert evaluation.accuracy.value == pytest.approx(evaluation.score.value)


def test_the_plug_in_calibration_error_is_the_gap_by_bins(tmp_path: Path) -> None:
    evaluation, table = _stored(tmp_path, "pairs")
    predicted = special.expit(table["margin"].abs())
    edges = [round(bin_.mean_predicted, 6) for bin_ in evaluation.calibration]
    assert edges == sorted(edges)
    # The bins are merged: each pair belongs to the run of tenths that its bin covers.
    counts = [bin_.count for bin_ in evaluation.calibration]
    order = np.argsort(np.minimum(((predicted - 0.5) * 20).astype(int), 9), kind="stable")
    groups = np.repeat(np.arange(len(counts)), counts)
    gaps = pd.DataFrame({"gap": ((table["margin"] > 0) - predicted).to_numpy()[order], "bin": groups})
    expected = float(gaps.groupby("bin")["gap"].sum().abs().sum() / len(table))
    assert evaluation.calibration_by_chance is not None
    assert evaluation.calibration_by_chance.plug_in == pytest.approx(expected)


def test_the_length_slope_is_that_of_a_regression(tmp_path: Path) -> None:
    evaluation, table = _stored(tmp_path, "pairs")
    items = {item.item.item_id: item.item for item in _items("pairs", seed=1, skill=0.8)}
    ratios = [np.log2(len(items[name].responses[0]) / len(items[name].responses[1])) for name in table["item_id"]]
    fitted = stats.linregress(ratios, table["margin"])
    slope = evaluation.length.slope
    assert slope is not None and slope.value == pytest.approx(float(fitted.slope))
    assert slope.ci_low is not None and slope.ci_high is not None and slope.ci_low < fitted.slope < slope.ci_high


def test_the_difference_of_two_models_is_paired_over_prompts(tmp_path: Path) -> None:
    tables = [_stored(tmp_path, "pairs", seed=seed, skill=skill)[1] for seed, skill in ((1, 0.8), (2, 0.2))]
    first, second = ((table["margin"] > 0).astype(float) for table in tables)
    prompts = tables[0]["prompt_id"]
    mean, error = _clustered(second - first, prompts)
    scored = [list(read_item_scores(tmp_path / f"items-{seed}.parquet").values()) for seed in (1, 2)]
    found = suite_difference(BENCHMARKS["pairs"], scored[1], scored[0], confidence=0.95)
    assert found is not None
    assert (found.first, found.second) == pytest.approx((first.mean(), second.mean()))
    assert found.difference.difference.value == pytest.approx(mean)
    assert found.difference.figure.variance**0.5 == pytest.approx(error)
    by_prompt = (second - first).groupby(prompts.to_numpy()).sum()
    better, worse = int((by_prompt > 0).sum()), int((by_prompt < 0).sum())
    exact = mcnemar([[0, better], [worse, 0]], exact=True)
    assert (found.difference.num_better, found.difference.num_worse) == (better, worse)
    assert found.difference.p_value == pytest.approx(float(exact.pvalue))
