"""Calibration of pairs: bins of predicted probability, and their error without the part that chance makes. Pure numpy.

The side that the model prefers is right with predicted probability sigmoid(|margin|), in [0.5, 1]; a tie predicts 0.5
and is half right. The plug-in error, mean distance of predicted and observed share, is above zero for every model: few
pairs scatter around their probability. So the error is the one whose plug-in error would on average be what was found.
Pairs of one prompt are right or wrong together, in the simulations as in the data.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from containers.contracts.certificate import CalibrationBin, CalibrationByChance
from containers.contracts.outcome import Metric
from containers.evals.intervals import Floats
from containers.evals.statistics import share_metric
from containers.evals.suites.base import Intervals

# A bin with fewer prompts joins the next one.
MIN_PROMPTS = 20
_NUM_BINS = 10
# Simulated sets of labels: fewer where there are many pairs, whose errors scatter less.
_MOST_DRAWS, _LEAST_DRAWS, _DRAWN_LABELS = 1000, 200, 10_000_000
_LABELS_AT_ONCE = 4_000_000
# Multiples of the found gaps that are tried as the truth.
_MULTIPLES = np.concatenate([[0.0], np.geomspace(0.05, 8, 13)])
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Calibration:
    """What pairs tell about the probabilities that a model gives them.

    Attributes:
        error: expected calibration error without the part of chance, with its interval.
        chance: the plug-in error, beside what a perfectly calibrated model would show on these pairs.
    """

    bins: tuple[CalibrationBin, ...]
    error: Metric
    chance: CalibrationByChance


def calibration_of(
    margins: Sequence[float], prompts: Sequence[str], intervals: Intervals, *, weights: Sequence[float] | None = None
) -> Calibration:
    """Compare how often the model is right with the probability that it predicts for this.

    The bins divide [0.5, 1] in ten; from the lowest on, one with fewer than 20 prompts joins the next.

    Args:
        margins: one per pair; there is at least one.
        prompts: the identity of each pair's prompt.
        weights: of each pair; only their ratios count. None: all the same.

    Source: Guo et al. 2017, arXiv:1706.04599 (plug-in error); its bias: Kumar et al. 2019, arXiv:1909.10155, and
    Roelofs et al. 2022, arXiv:2012.08668; interval by inversion of simulated tests (Carpenter 1999, Stat. Med. 18).
    """
    pairs = _BinnedPairs.of(margins, prompts, weights)
    error, chance = _error_and_chance(pairs, intervals)
    bins = tuple(_bin(pairs, place, intervals.confidence) for place in range(pairs.num_bins))
    return Calibration(bins=bins, error=error, chance=chance)


@dataclass(frozen=True)
class _BinnedPairs:
    """Pairs in the order of their bins.

    Attributes:
        predicted: [N] probabilities, in [0.5, 1].
        right: [N] 0, 0.5 for a tie, or 1.
        bins: [N] number of the bin, from 0, ascending; none is empty.
        prompts: [N] number of the prompt.
        weights: [N] 1 on average.
    """

    predicted: Floats
    right: Floats
    bins: Integers
    prompts: Integers
    weights: Floats

    @classmethod
    def of(cls, margins: Sequence[float], prompts: Sequence[str], weights: Sequence[float] | None) -> "_BinnedPairs":
        given = np.ones(len(margins)) if weights is None else np.asarray(weights, dtype=np.float64)
        counts = given > 0
        given, values = given[counts], np.asarray(margins, dtype=np.float64)[counts]
        predicted = 1 / (1 + np.exp(-np.abs(values)))
        right = (values > 0) + 0.5 * (values == 0)
        _, places = np.unique(np.asarray(prompts, dtype=object).astype(str)[counts], return_inverse=True)
        bins = _merged_bins(predicted, places.astype(np.int64))
        order = np.argsort(bins, kind="stable")
        return cls(
            predicted[order], right[order], bins[order], places.astype(np.int64)[order], (given / given.mean())[order]
        )

    @property
    def num_bins(self) -> int:
        return int(self.bins[-1]) + 1

    @property
    def num_prompts(self) -> int:
        return int(self.prompts.max()) + 1

    def sums(self, values: Floats) -> Floats:
        """[B] weighted sums over the pairs of each bin."""
        return np.bincount(self.bins, weights=self.weights * values, minlength=self.num_bins).astype(np.float64)

    def error(self, shares: Floats) -> float:
        """Mean distance of the bins' mean shares [N] from the predicted ones, by the pairs' weights."""
        return float(np.abs(self.sums(shares - self.predicted)).sum() / self.predicted.size)

    def gaps(self) -> Floats:
        """[B] observed minus predicted share."""
        found: Floats = self.sums(self.right - self.predicted) / self.sums(np.ones_like(self.right))
        return found

    def alike(self) -> float:
        """How much two pairs of one prompt are right together, beyond their bins' shares; 1: with one random number."""
        if self.num_prompts == 1:
            return 1.0
        shares = np.clip(self.predicted + self.gaps()[self.bins], 0, 1)
        together = _products(self.right - shares, self.prompts)
        most = _smaller_ones(shares, self.prompts) - _products(shares, self.prompts)
        return min(max(together / most, 0.0), 1.0) if most > 0 else 0.0

    def gap_errors(self) -> Floats:
        """[B] standard errors of the gaps, over prompts."""
        rest = self.weights * (self.right - self.predicted - self.gaps()[self.bins])
        keys, places = np.unique(self.bins * self.num_prompts + self.prompts, return_inverse=True)
        squares = np.bincount(places, weights=rest) ** 2
        return np.sqrt(np.bincount(keys // self.num_prompts, weights=squares)) / self.sums(np.ones_like(rest))


def _merged_bins(predicted: Floats, prompts: Integers) -> Integers:
    """[N] numbers of the bins, after each with fewer than 20 prompts has joined the next, the last one the one before.

    Example: 5 prompts near 0.5, 30 near 0.9 make one bin; 25 near 0.5, 30 near 0.9 make two.
    """
    raw = np.minimum(((predicted - 0.5) * 2 * _NUM_BINS).astype(np.int64), _NUM_BINS - 1)
    number_of, number, inside = np.zeros(_NUM_BINS, dtype=np.int64), 0, np.zeros(raw.size, dtype=bool)
    for place in range(_NUM_BINS):
        inside |= raw == place
        number_of[place] = number
        if np.unique(prompts[inside]).size >= MIN_PROMPTS:
            number, inside = number + 1, np.zeros(raw.size, dtype=bool)
    # The last bins had too few.
    found: Integers = np.minimum(number_of, max(0, number - 1))[raw]
    return found


def _bin(pairs: _BinnedPairs, place: int, confidence: float) -> CalibrationBin:
    inside = pairs.bins == place
    prompts = pairs.prompts[inside]
    share = share_metric(
        pairs.right[inside].tolist(),
        name="observed",
        confidence=confidence,
        clusters=prompts.tolist(),
        weights=pairs.weights[inside].tolist(),
    )
    return CalibrationBin(
        mean_predicted=float(np.average(pairs.predicted[inside], weights=pairs.weights[inside])),
        observed=share.value,
        low=share.ci_low,
        high=share.ci_high,
        count=int(inside.sum()),
        num_prompts=np.unique(prompts).size,
    )


def _error_and_chance(pairs: _BinnedPairs, intervals: Intervals) -> tuple[Metric, CalibrationByChance]:
    found, gaps = pairs.error(pairs.right), pairs.gaps()
    # The truth may lie in the gaps as found, in those beyond their standard error, or all on the side of too sure.
    beyond = np.sign(gaps) * np.maximum(0.0, np.abs(gaps) - pairs.gap_errors())
    too_sure = np.full_like(gaps, -max(found, 0.01, 1 / pairs.num_prompts))
    tried = [
        np.clip(pairs.predicted + multiple * direction[pairs.bins], 0, 1)
        for direction in (gaps, beyond, too_sure)
        for multiple in _MULTIPLES
    ]
    drawn = _drawn_errors(pairs, tried, seed=intervals.seed)
    tail = _tail(intervals.confidence, degrees=pairs.num_prompts - pairs.num_bins)
    families = [slice(start, start + _MULTIPLES.size) for start in range(0, len(tried), _MULTIPLES.size)]
    true = np.array([pairs.error(chances) for chances in tried])
    low_shown, high_shown = np.quantile(drawn, [tail, 1 - tail], axis=1)
    by_chance = drawn[0]
    value = _least(found, drawn.mean(axis=1)[families[0]], true[families[0]])
    low = min(_least(found, high_shown[family], true[family]) for family in families)
    # Luck beyond a perfect model's mean narrows no interval.
    at_least = max(found, float(by_chance.mean()))
    high = max(_most(at_least, low_shown[family], true[family]) for family in families)
    metric = Metric(
        name="expected_calibration_error",
        value=value,
        unit="fraction",
        ci_low=min(low, value),
        ci_high=max(high, value),
        count=pairs.right.size,
        num_prompts=pairs.num_prompts,
    )
    return metric, CalibrationByChance(
        plug_in=found, perfect_mean=float(by_chance.mean()), perfect_high=float(np.quantile(by_chance, 0.95))
    )


def _least(found: float, shown: Floats, true: Floats) -> float:
    """The smallest true error at which `found` is shown; 0 where no error already shows more.

    Args:
        shown: [M] what is shown for each of the true errors [M], which ascend from 0.
    """
    return float(np.interp(-found, -np.maximum.accumulate(shown)[::-1], true[::-1]))


def _most(found: float, shown: Floats, true: Floats) -> float:
    """The largest true error at which `found` is shown; arguments as `_least`."""
    return float(np.interp(found, np.maximum.accumulate(shown), true))


def _tail(confidence: float, *, degrees: int) -> float:
    """Share of draws beyond each end: smaller for few prompts, as Student's t has longer tails than a normal one."""
    from scipy import special

    return float(special.ndtr(special.stdtrit(max(1, degrees), (1 - confidence) / 2)))


def _drawn_errors(pairs: _BinnedPairs, tried: Sequence[Floats], *, seed: int) -> Floats:
    """[T, D] plug-in errors of D simulated sets of labels for each of T true probabilities [N]; a tie stays half right.

    The labels of two pairs of a prompt hang together as in the data; those of T probabilities have the same draws.
    """
    is_tie = pairs.right == 0.5
    starts = np.flatnonzero(np.diff(pairs.bins, prepend=-1))
    expected = pairs.sums(np.where(is_tie, 0.0, pairs.predicted))
    weights = pairs.weights.astype(np.float32)
    chances = [np.where(is_tie, -1.0, true).astype(np.float32) for true in tried]
    blocks = []
    for uniforms in _uniforms(pairs, seed=seed):
        sums = [np.add.reduceat((uniforms < chance) * weights, starts, axis=1) for chance in chances]
        blocks.append(np.stack([np.abs(each - expected).sum(axis=1) for each in sums]))
    found: Floats = np.concatenate(blocks, axis=1) / pairs.right.size
    return found


def _uniforms(pairs: _BinnedPairs, *, seed: int) -> Iterator[NDArray[np.float32]]:
    """Yield uniform numbers, [draws, N] in blocks; a pair has its prompt's own number with probability √correlation."""
    generator, size = np.random.default_rng(seed), pairs.right.size
    draws = min(max(_DRAWN_LABELS // size, _LEAST_DRAWS), _MOST_DRAWS)
    at_once, shared = max(1, _LABELS_AT_ONCE // size), float(np.sqrt(pairs.alike()))
    for start in range(0, draws, at_once):
        shape = min(at_once, draws - start), size
        uniforms = generator.random(shape, dtype=np.float32)
        if shared > 0:
            own = generator.random((shape[0], pairs.num_prompts), dtype=np.float32)[:, pairs.prompts]
            uniforms = np.where(generator.random(shape, dtype=np.float32) < shared, own, uniforms)
        yield uniforms


def _products(values: Floats, prompts: Integers) -> float:
    """Sum of the products of two different pairs of a prompt, over all prompts."""
    sums, squares = np.bincount(prompts, weights=values), np.bincount(prompts, weights=values**2)
    return float((sums**2 - squares).sum())


def _smaller_ones(values: Floats, prompts: Integers) -> float:
    """Sum of the smaller values of two different pairs of a prompt, over all prompts."""
    order = np.lexsort((values, prompts))
    sizes = np.bincount(prompts)
    larger = np.cumsum(sizes)[prompts[order]] - 1 - np.arange(values.size)
    return float(2 * (values[order] * larger).sum())
