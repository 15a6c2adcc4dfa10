"""The figures of a scored suite: the benchmark's own score, then accuracy, margins and calibration of its pairs."""

from collections.abc import Sequence

import numpy as np

from containers.contracts.certificate import SuiteEvaluation
from containers.contracts.outcome import Metric
from containers.contracts.records import Histogram
from containers.evals.calibration import calibration_of
from containers.evals.length_bias import length_bias
from containers.evals.length_effects import EditedPairs
from containers.evals.scored_suite import ScoredPair, ScoredSuite, accuracy_by, pair_accuracy
from containers.evals.statistics import (
    histogram,
    margin_histogram,
    mean_metric,
    pair_losses,
)
from containers.evals.suites.base import Intervals

# Scores that are all equal still get bins.
_SMALLEST_REACH = 1e-3


def evaluate_suite(
    suite: ScoredSuite,
    intervals: Intervals,
    *,
    edited: EditedPairs = EditedPairs(),  # noqa: B008 - frozen
) -> SuiteEvaluation:
    """All figures of one suite. In `accuracy` a tie is half right; `score` follows the benchmark's own rule.

    A suite with no item left has no figures, and so fails a gate that needs one.
    """
    judged = suite.benchmark.judge(suite.items, intervals) if suite.items else None
    known = SuiteEvaluation(
        name=suite.name,
        benchmark=suite.benchmark.name,
        title=suite.benchmark.title,
        origin=suite.origin,
        digest=suite.digest,
        source=suite.benchmark.source,
        tie_rule=suite.benchmark.tie_rule,
        rows_read=suite.rows.rows_read,
        num_items=len(suite.items),
        num_prompts=len({scored.item.prompt_id for scored in suite.items}),
        num_pairs=len(suite.pairs),
        num_over_long=suite.num_over_long,
        left_out_because=tuple(sorted(suite.rows.left_out.items())),
        left_out_examples=suite.rows.examples[:5],
        score=judged.score if judged else None,
        sections=judged.sections if judged else (),
        subsets=judged.subsets if judged else (),
        missing=judged.missing if judged else (),
        minimum_accuracy=suite.minimum_accuracy,
    )
    return known.model_copy(update=_pair_figures(suite.pairs, intervals, edited))


def score_moments(pairs: Sequence[ScoredPair]) -> tuple[float, float]:
    """Mean and standard deviation of the scores of both sides, weighted as the pairs are; 0 and 0 without a pair."""
    weights = np.repeat([pair.weight for pair in pairs], 2)
    if not weights.sum():
        return 0.0, 0.0
    scores = np.array([score for pair in pairs for score in (pair.score_better, pair.score_worse)])
    mean = float(np.average(scores, weights=weights))
    return mean, float(np.sqrt(np.average((scores - mean) ** 2, weights=weights)))


def _pair_figures(pairs: Sequence[ScoredPair], intervals: Intervals, edited: EditedPairs) -> dict[str, object]:
    """The fields of a SuiteEvaluation that come from pairs; none without pairs."""
    if not pairs:
        return {}
    margins, prompts = [pair.margin for pair in pairs], [pair.prompt_id for pair in pairs]
    weights = [pair.weight for pair in pairs]

    def mean(values: list[float], name: str, unit: str) -> Metric:
        return mean_metric(
            values,
            name=name,
            unit=unit,
            confidence=intervals.confidence,
            clusters=prompts,
            weights=weights,
        )

    calibration = calibration_of(margins, prompts, intervals, weights=weights)
    better, worse = _score_histograms(pairs)
    return {
        "num_ties": margins.count(0.0),
        "accuracy": pair_accuracy(pairs, "accuracy", confidence=intervals.confidence),
        "mean_margin": mean(margins, "mean_margin", "score"),
        "log_loss": mean(pair_losses(margins), "log_loss", "nats"),
        "expected_calibration_error": calibration.error,
        "calibration_by_chance": calibration.chance,
        "margins": margin_histogram(margins),
        "better_scores": better,
        "worse_scores": worse,
        "calibration": calibration.bins,
        "by_strength": accuracy_by(
            pairs,
            lambda pair: "" if pair.strength is None else f"{pair.strength:g}",
            confidence=intervals.confidence,
        ),
        "length": length_bias(pairs, intervals, score_std=score_moments(pairs)[1], edited=edited),
    }


def _score_histograms(pairs: Sequence[ScoredPair]) -> tuple[Histogram, Histogram]:
    """Scores of better and worse responses, in the same bins."""
    better, worse = [pair.score_better for pair in pairs], [pair.score_worse for pair in pairs]
    low, high = min(*better, *worse), max(*better, *worse)
    middle, reach = (low + high) / 2, max((high - low) / 2, _SMALLEST_REACH)
    ends = middle - reach, middle + reach
    return histogram(better, ends=ends), histogram(worse, ends=ends)
