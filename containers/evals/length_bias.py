"""How score and length of responses go together: by edits of the same response, and across pairs. Pure numpy.

Across pairs, the slope holds what quality and the labels have to do with length, besides the model's own bias: it says
what the model does on these pairs, given these labels. Edits of the same response show the bias (`length_effects`).

Lengths are in characters. x is log2(length of the better response / length of the worse one), in doublings. x and the
margin are differences within one prompt, so that prompts with generally long answers have no effect.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from containers.contracts.certificate import LengthBias
from containers.contracts.outcome import Metric
from containers.evals.intervals import Floats, LinearFigure, mean_interval, share_interval
from containers.evals.jackknife import jackknife
from containers.evals.length_effects import EditedPairs, length_interventions, padding_attack
from containers.evals.scored_suite import ScoredPair, accuracy_by
from containers.evals.suites.base import Intervals

# Better minus worse, characters: upper end (exclusive) and label of each group, in order.
_LENGTH_GROUPS = (
    (-300, "shorter by more than 300"),
    (-50, "shorter by 51 to 300"),
    (51, "within 50"),
    (301, "longer by 51 to 300"),
    (math.inf, "longer by more than 300"),
)
LENGTH_LABELS = tuple(label for _, label in _LENGTH_GROUPS)

# Weighted values held at once while resampling: 32 MB.
_RESAMPLED_VALUES = 4_000_000
# Below this spread of x (doublings) the effect of length cannot be measured.
_SMALLEST_SPREAD = 1e-6


@dataclass(frozen=True)
class _Sample:
    """Per pair: margin, x, weight, the place of its prompt among `num_prompts`."""

    margins: Floats
    doublings: Floats
    own_weights: Floats
    prompts: NDArray[np.int64]
    num_prompts: int

    def weights(self, intervals: Intervals) -> Iterator[Floats]:
        """Yield [B, N] blocks: how often each pair is drawn in B resamples of the prompts, times its weight."""
        generator = np.random.default_rng(intervals.seed)
        at_once = max(1, _RESAMPLED_VALUES // max(self.num_prompts, self.margins.size))
        shares = np.full(self.num_prompts, 1 / self.num_prompts)
        for start in range(0, intervals.num_bootstrap, at_once):
            rows = min(at_once, intervals.num_bootstrap - start)
            yield generator.multinomial(self.num_prompts, shares, size=rows)[:, self.prompts] * self.own_weights


def length_bias(
    pairs: Sequence[ScoredPair], intervals: Intervals, *, score_std: float, edited: EditedPairs
) -> LengthBias:
    """Compute all length figures of these pairs; those that cannot be measured (no length differs) are null.

    slope: least squares of margin on x with an intercept; standard_slope: slope / `score_std`. A model without a bias
    has a slope of 0 only if quality and labels have nothing to do with length: where better answers are longer it has a
    positive one, where people chose answers for their length a negative one. controlled_accuracy: accuracy of
    margin − slope · x; the linear form of the correction for length bias of Huang et al. 2024 (arXiv:2409.17407). It
    takes quality that goes with length away, too. Intervals are over prompts with all their pairs.

    Args:
        score_std: standard deviation of the scores of all responses.
        edited: the drawn pairs with their edits.
    """
    if not pairs:
        return LengthBias()
    sample = _sample(pairs)
    slope = _length_slope(sample, confidence=intervals.confidence)
    return LengthBias(
        num_pairs=len(pairs),
        interventions=length_interventions(edited, score_std=score_std, confidence=intervals.confidence),
        slope=slope,
        standard_slope=_scaled(slope, 1 / score_std, name="standard_length_slope", unit="SD per doubling")
        if slope and score_std > 0
        else None,
        controlled_accuracy=_accuracy_at_equal_lengths(sample, intervals),
        by_length_difference=accuracy_by(
            pairs,
            lambda pair: length_group(pair.length_difference),
            confidence=intervals.confidence,
            order=LENGTH_LABELS,
        ),
        padding=padding_attack(edited, confidence=intervals.confidence),
    )


def length_group(difference: int) -> str:
    """The label of a length difference. Example: −120 is `shorter by 51 to 300`."""
    return next(label for end, label in _LENGTH_GROUPS if difference < end)


def _sample(pairs: Sequence[ScoredPair]) -> _Sample:
    numbers: dict[str, int] = {}
    prompts = [numbers.setdefault(pair.prompt_id, len(numbers)) for pair in pairs]
    ratios = [math.log2(max(1, len(pair.better)) / max(1, len(pair.worse))) for pair in pairs]
    return _Sample(
        margins=np.array([pair.margin for pair in pairs], dtype=np.float64),
        doublings=np.array(ratios, dtype=np.float64),
        own_weights=np.array([pair.weight for pair in pairs], dtype=np.float64),
        prompts=np.array(prompts, dtype=np.int64),
        num_prompts=len(numbers),
    )


def _draws(sample: _Sample, intervals: Intervals, measure: Callable[[_Sample, Floats], Floats]) -> Floats:
    """[B] the figure in resamples of the prompts, where it can be computed."""
    resampled = np.concatenate([measure(sample, weights) for weights in sample.weights(intervals)])
    finite: Floats = resampled[np.isfinite(resampled)]
    return finite


def _value(sample: _Sample, measure: Callable[[_Sample, Floats], Floats]) -> float | None:
    """The figure; None where length does not vary."""
    if sample.num_prompts < 3 or float(sample.doublings.std()) < _SMALLEST_SPREAD:
        return None
    return float(measure(sample, sample.own_weights[None])[0])


def _length_slope(sample: _Sample, *, confidence: float) -> Metric | None:
    """The slope with its t interval over prompts; without one where a single prompt tells it."""
    value = _value(sample, _slope)
    if value is None:
        return None
    figure = jackknife(value, _slopes_without_each(sample), num_strata=2)  # an intercept and a slope
    low, high = (None, None) if figure is None else mean_interval(figure, confidence=confidence)
    return _metric(sample, "length_slope", value, low, high, unit="per doubling")


def _slopes_without_each(sample: _Sample) -> Floats:
    """[C] the slope without each prompt; NaN where all other pairs have one x."""
    x, y = (values - values.mean() for values in (sample.doublings, sample.margins))

    def left(values: Floats) -> Floats:
        weighted = sample.own_weights * values
        sums: Floats = weighted.sum() - np.bincount(sample.prompts, weights=weighted)
        return sums

    # Where one prompt has all the weight, nothing is left.
    size = np.maximum(left(np.ones_like(x)), 1e-12)
    mean_x, mean_y = left(x) / size, left(y) / size
    return _ratio(left(x * y) / size - mean_x * mean_y, left(x**2) / size - mean_x**2)


def _accuracy_at_equal_lengths(sample: _Sample, intervals: Intervals) -> Metric | None:
    """Accuracy at equal lengths; a share whose variance is that of resamples, which include the slope's."""
    value = _value(sample, _controlled_accuracy)
    if value is None:
        return None
    draws = _draws(sample, intervals, _controlled_accuracy)
    variance = float(draws.var()) if draws.size else 0.0
    sizes = np.bincount(sample.prompts, weights=sample.own_weights)
    # Prompts with a wrong pair are those that tell; each gets its part of the variance.
    wrong = np.bincount(sample.prompts, weights=sample.own_weights * (_left(sample) <= 0))
    telling = np.sqrt(wrong if value >= 0.5 else sizes - wrong)
    residuals = telling * np.sqrt(variance) / max(float(np.sqrt((telling**2).sum())), 1e-12)
    figure = LinearFigure(value, residuals, sizes / sizes.sum(), num_strata=2)  # the slope costs one more
    low, high = share_interval(figure, confidence=intervals.confidence)
    return _metric(sample, "controlled_accuracy", value, low, high)


def _left(sample: _Sample) -> Floats:
    """[N] margins without the part that the slope explains."""
    left: Floats = sample.margins - _slope(sample, sample.own_weights[None])[0] * sample.doublings
    return left


def _metric(
    sample: _Sample, name: str, value: float, low: float | None, high: float | None, *, unit: str = "fraction"
) -> Metric:
    return Metric(
        name=name, value=value, unit=unit, ci_low=low, ci_high=high, count=sample.margins.size,
        num_prompts=sample.num_prompts,
    )  # fmt: skip


def _slope(sample: _Sample, weights: Floats) -> Floats:
    """[B] weighted least-squares slopes; NaN where a resample has only one x."""
    total = weights.sum(axis=1)
    mean_x, mean_y = weights @ sample.doublings / total, weights @ sample.margins / total
    covariance = weights @ (sample.doublings * sample.margins) / total - mean_x * mean_y
    variance = weights @ sample.doublings**2 / total - mean_x**2
    return _ratio(covariance, variance)


def _ratio(covariance: Floats, variance: Floats) -> Floats:
    """The slope; NaN where x does not vary."""
    return np.where(variance > _SMALLEST_SPREAD**2, covariance / np.maximum(variance, _SMALLEST_SPREAD**2), np.nan)


def _controlled_accuracy(sample: _Sample, weights: Floats) -> Floats:
    """[B] accuracy of margin − slope · x, with the slope of each resample; a tie is half right."""
    left = sample.margins - _slope(sample, weights)[:, None] * sample.doublings
    right = (left > 0) + 0.5 * (left == 0)
    return np.where(np.isfinite(left).all(axis=1), (weights * right).sum(axis=1) / weights.sum(axis=1), np.nan)


def _scaled(metric: Metric, factor: float, *, name: str, unit: str) -> Metric:
    ends = {
        end: None if old is None else old * factor
        for end, old in (("ci_low", metric.ci_low), ("ci_high", metric.ci_high))
    }
    return metric.model_copy(update={"name": name, "unit": unit, "value": metric.value * factor, **ends})
