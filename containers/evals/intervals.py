"""Intervals of means and shares over clusters: exact binomial, Student's t. Pure numpy.

Observations that share something, such as several votes on one prompt, say less than as many independent ones. They
form clusters, and every interval is over clusters.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# A variance below is rounding.
_SMALLEST_VARIANCE = 1e-20
# Strata of fewer clusters do not tell their variance by themselves.
_FEW_CLUSTERS = 20


@dataclass(frozen=True)
class LinearFigure:
    """A mean of clusters, or a weighted mean of such means, with what each cluster adds to its uncertainty.

    Attributes:
        residuals: [C] how far each cluster moves the figure; the sum of their squares estimates its variance.
        weights: [C] the part of each cluster in the figure; they add up to one.
        num_strata: means that it is made of; each costs a degree of freedom.
        parts: [C] what each cluster adds to the value; they add up to it. Only shares and differences need them.
        per_cluster: independent observations that a cluster counts at least, as `observations_per_cluster` tells.
        strata: clusters of each mean, in order; empty: all are of one.
        kind: values of a share lie in 0 to 1, of the difference of two in -1 to 1; of others nothing is known.
    """

    value: float
    residuals: Floats
    weights: Floats
    num_strata: int = 1
    parts: Floats = field(default_factory=lambda: np.empty(0))
    per_cluster: float = 1.0
    strata: tuple[int, ...] = ()
    kind: Literal["", "share", "difference"] = ""

    @property
    def spreads(self) -> Floats:
        """[C + S] the residuals, and what is added for strata that are too small to show how far they vary."""
        return np.concatenate([self.residuals, self._added()])

    @property
    def variance(self) -> float:
        """Of the figure."""
        return float((self.spreads**2).sum())

    def _added(self) -> Floats:
        """[S] standard deviations that small strata lack.

        One prompt, or a few that are all right, seem certain, and with a fixed weight they would decide. Each such
        stratum counts as if one more prompt had been seen: of a share, as variable as (right + 1) of (prompts + 2)
        are; of a difference, as one on which the models differ adds to those that were seen.

        Source: Laplace's rule of succession; docs/proofs/statistics.md has what it covers.
        """
        sizes = self.strata or (self.residuals.size,)
        if not self.kind or (len(sizes) == 1 and (self.kind == "share" or self.residuals.any())):
            return np.empty(0)
        found, start = [], 0
        for size in sizes:
            place, start = slice(start, start + size), start + size
            weights, seen = self.weights[place], float((self.residuals[place] ** 2).sum())
            if weights.sum() <= 0 or (size >= _FEW_CLUSTERS and seen > 0):
                continue
            if self.kind == "share":
                likely = (float(self.parts[place].sum() / weights.sum()) * size + 1) / (size + 2)
                one = likely * (1 - likely)
            else:
                one = float(((self.parts[place][weights > 0] / weights[weights > 0]) ** 2).sum() + 1) / (size + 1)
            usual = ((size - 1) * seen + one * float((weights**2).sum())) / size
            found.append(np.sqrt(max(usual - seen, 0.0)))
        return np.array(found)

    @property
    def most_degrees(self) -> int:
        """Degrees of freedom where all clusters say as much as each other; at least one."""
        return max(1, self.residuals.size - self.num_strata)

    @property
    def num_telling(self) -> float:
        """As many equal clusters would say as much about the variance: near the number of those that differ."""
        spreads = self.spreads
        if float((spreads**2).sum()) < _SMALLEST_VARIANCE:
            return self.most_degrees + 1.0
        squares = (spreads / float(np.abs(spreads).max())) ** 2
        return float(squares.sum() ** 2 / (squares**2).sum())


def clustered_mean(
    values: Sequence[float], clusters: Sequence[Hashable] | None = None, weights: Sequence[float] | None = None
) -> LinearFigure:
    """The mean over all values, weighted or not; what clusters share is one observation.

    Raises:
        ValueError: there is no value.
    """
    if weights is None:
        return clustered_ratio(values, np.ones(len(values)), clusters)
    products: Floats = np.asarray(weights, dtype=np.float64) * np.asarray(values, dtype=np.float64)
    return clustered_ratio(products.tolist(), weights, clusters)


def clustered_ratio(
    numerators: Sequence[float], denominators: Sequence[float] | Floats, clusters: Sequence[Hashable] | None = None
) -> LinearFigure:
    """The sum of the numerators over that of the denominators, which are above zero.

    Raises:
        ValueError: there is no value.

    Source: Cochran 1977, Sampling Techniques, 6.4 (variance of a ratio by linearization).
    Example: the slope through the origin of y on x is the ratio of the products x · y to the squares x².
    """
    if not len(numerators):
        raise ValueError("An interval needs at least one observation.")
    names = range(len(numerators)) if clusters is None else clusters
    above, below = cluster_sums(numerators, names)[0], cluster_sums(denominators, names)[0]
    total, size = float(below.sum()), below.size
    ratio = float(above.sum() / total)
    correction = float(np.sqrt(size / (size - 1))) if size > 1 else 1.0
    return LinearFigure(ratio, correction * (above - ratio * below) / total, below / total, parts=above / total)


def share_interval(share: LinearFigure, *, confidence: float) -> tuple[float, float]:
    """Interval of a share that holds near 0 and 1, for few clusters, and for weighted means.

    It is the exact binomial interval for the number of independent observations that would have the same variance,
    lowered by Student's t for as many degrees of freedom as there are clusters that differ from the rest. It never
    counts less than `per_cluster` observations a cluster: one where all of a cluster are right or wrong together. These
    are lowered, too, where few clusters have most of the weight.

    Source: Korn and Graubard 1998, Surv. Methodol. 24(2), with t for the clusters that tell (`num_telling`) in place of
    all; docs/proofs/statistics.md has its coverage.
    Example: 8 of 10 at 0.95 give 0.404 to 0.983.
    """
    value = min(max(share.value, 0.0), 1.0)
    squares, most = share.weights**2, float(share.most_degrees)
    least = share.per_cluster / float(squares.sum())
    weighty = float(squares.sum() ** 2 / (squares**2).sum())
    count = value * (1 - value) / share.variance if share.variance > _SMALLEST_VARIANCE else least
    degrees = min(max(share.num_telling - 1, 1.0), most)
    lowered = max(count * _lowering(degrees, confidence), least * _lowering(min(most, 2 * weighty + 1), confidence))
    return exact_interval(value * lowered, lowered, confidence=confidence)


def mean_interval(mean: LinearFigure, *, confidence: float) -> tuple[float, float]:
    """Student's t interval of a mean, with fewer degrees of freedom where a few clusters make up its variance.

    Where two models differ on no prompt, the ends are the largest share of prompts on which they could differ and show
    no difference here: exact, one-sided.

    Source: Satterthwaite 1946, Biom. Bull. 2(6): degrees 2 / (variation of the variance), here 2C / (kurtosis − 1).
    Example: 1, 2, 3 at 0.95 give -0.484 to 4.484; 20 prompts without a difference give -0.168 to 0.168.
    """
    if mean.kind == "difference" and not mean.parts.any():
        count = 1 / float((mean.weights**2).sum())
        end = 1 - float(((1 - _in_open_range(confidence)) / 2) ** (1 / count))
        return -end, end
    half = _student(_degrees(mean), confidence) * float(np.sqrt(mean.variance))
    return mean.value - half, mean.value + half


def mean_end(mean: LinearFigure, *, alpha: float) -> float:
    """Upper end of the one-sided interval of a mean: the truth is above it with probability `alpha`.

    Example: 1, 2, 3 at 0.025 give 4.484, the upper end of the two-sided interval at 0.95.
    """
    return mean_interval(mean, confidence=1 - 2 * alpha)[1]


def detectable(mean: LinearFigure, *, confidence: float, power: float) -> float:
    """The smallest true value that such data tell from 0 with this probability, by the two-sided interval.

    Where no cluster differs from another, one that did is assumed.

    Source: Cohen 1988, Statistical Power Analysis, with Student's t in place of the normal distribution.
    """
    degrees = _degrees(mean)
    error = max(float(np.sqrt(mean.variance)), float(np.abs(mean.weights).max()))
    return (_student(degrees, confidence) + _student(degrees, 2 * power - 1)) * error


def _degrees(mean: LinearFigure) -> float:
    most, size = mean.most_degrees, mean.spreads.size
    spread_of_squares = max(size / mean.num_telling - 1, 1e-9)
    return float(min(max(2 * size / spread_of_squares, 1.0), float(most)))


def observations_per_cluster(scores: Sequence[float], clusters: Sequence[Hashable]) -> float:
    """Independent observations that a cluster of scores is worth: 1 if they are all alike, its size if not at all.

    Where all are right, or nearly all, their rights cannot tell how alike they are; the scores behind them can. Shares
    above a threshold are less alike than the scores, so this counts too few rather than too many.

    Source: Donner 1986, Int. Stat. Rev. 54(1): intraclass correlation by analysis of variance, here with a standard
    error on top; Kish 1965: design effect.
    """
    sums, sizes = cluster_sums(scores, clusters)
    values = np.asarray(scores, dtype=np.float64)
    total, size = values.size, sums.size
    mean_size = float((sizes**2).sum() / total)
    if size < 2 or total == size:
        return 1.0
    between = float((sizes * (sums / sizes - values.mean()) ** 2).sum()) / (size - 1)
    within = (float(((values - values.mean()) ** 2).sum()) - between * (size - 1)) / (total - size)
    usual = (total - mean_size) / (size - 1)
    spread = between + (usual - 1) * within
    if spread <= 0:
        return 1.0
    alike = min(max((between - within) / spread, 0.0), 1.0)
    error = (1 - alike) * (1 + (usual - 1) * alike) * np.sqrt(2 / (usual * max(usual - 1, 1e-9) * (size - 1)))
    return mean_size / (1 + (mean_size - 1) * min(alike + float(error), 1.0))


def _lowering(degrees: float, confidence: float) -> float:
    return (_student(1e9, confidence) / _student(degrees, confidence)) ** 2


def _student(degrees: float, confidence: float) -> float:
    """Standard errors that hold `confidence` of Student's distribution; 0 and 1 are moved into the open range."""
    from scipy import special

    return float(special.stdtrit(degrees, 0.5 + _in_open_range(confidence) / 2))


def _in_open_range(confidence: float) -> float:
    return min(max(confidence, 1e-6), 1 - 1e-12)


def exact_interval(right: float, count: float, *, confidence: float) -> tuple[float, float]:
    """Exact interval of a share; covers at least `confidence` whatever the true share.

    Args:
        right: successes, 0 to `count`; an effective number need not be whole.
        count: observations, above zero.
        confidence: 0.95 for a 95 % interval.

    Raises:
        ValueError: there is no observation.

    Source: Clopper and Pearson 1934, Biometrika 26(4), by quantiles of the beta distribution.
    Example: 8 of 10 at 0.95 give 0.444 to 0.975.
    """
    from scipy import special

    if count <= 0:
        raise ValueError("An interval needs at least one observation.")
    tail = (1 - _in_open_range(confidence)) / 2
    wrong = max(0.0, count - right)
    low = float(special.betaincinv(right, wrong + 1, tail)) if right > 0 else 0.0
    high = float(special.betaincinv(right + 1, wrong, 1 - tail)) if wrong > 0 else 1.0
    return low, high


def cluster_sums(values: Sequence[float] | Floats, clusters: Sequence[Hashable]) -> tuple[Floats, Floats]:
    """[C] sums and sizes of the clusters, in the order in which they first appear."""
    numbers: dict[Hashable, int] = {}
    places = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    sums: Floats = np.bincount(places, weights=np.asarray(values, dtype=np.float64)).astype(np.float64)
    return sums, np.bincount(places).astype(np.float64)
