"""Differences of two models on the same items, of which several may have the same prompt. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from containers.contracts.outcome import Metric

# Resamples drawn at once: 64 MB for a million values.
_RESAMPLED_VALUES = 8_000_000


def paired_difference(differences: Sequence[float], *, confidence: float, num_bootstrap: int, seed: int = 0) -> Metric:
    """The mean of the differences per item, with its percentile bootstrap interval; items are drawn as pairs.

    Args:
        differences: challenger minus champion on each item, from -1 to 1.
        confidence: 0.95 for a 95 % interval.

    Raises:
        ValueError: there is no item.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, ch. 13; `scipy.stats.bootstrap`.
    Example: [1, 1, 0, 0, -1] has the mean 0.2; an item that both get right or both wrong counts 0.
    """
    import numpy as np
    from scipy import stats  # type: ignore[import-untyped]  # heavy: a second, and only a retraining needs it

    values = np.asarray(differences, dtype=np.float64)
    if values.size < 1:
        raise ValueError("An interval needs at least one item.")
    low = high = float(values.mean())
    if values.min() != values.max():
        found = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=num_bootstrap,
            batch=max(1, _RESAMPLED_VALUES // values.size),
            confidence_level=confidence,
            method="percentile",
            rng=np.random.default_rng(seed),
        ).confidence_interval
        low, high = float(found.low), float(found.high)
    return Metric(
        name="difference", value=float(values.mean()), unit="fraction", ci_low=low, ci_high=high, count=int(values.size)
    )


def mcnemar_p_value(num_better: int, num_worse: int) -> float:
    """Probability that two equal models differ at least this unevenly on the items where only one of them is right.

    Exact and two-sided; 1 if they never differ.

    Source: McNemar 1947, Psychometrika 12(2); exact form: binomial with p = 1/2.
    Example: 8 better and 1 worse give 0.039.
    """
    from scipy import stats

    if num_better + num_worse == 0:
        return 1.0
    return float(stats.binomtest(num_better, num_better + num_worse, 0.5).pvalue)


@dataclass(frozen=True)
class ClusteredDifference:
    """The difference of two models.

    Attributes:
        difference: mean over items, with its percentile bootstrap interval over prompts.
        num_prompts: different prompts among the items.
        num_better: prompts on which the second model does better in sum.
        num_worse: prompts on which it does worse.
        p_value: exact McNemar test over these prompts.
    """

    difference: Metric
    num_prompts: int
    num_better: int
    num_worse: int
    p_value: float


def clustered_difference(
    differences: Sequence[float], prompts: Sequence[str], *, confidence: float, num_bootstrap: int, seed: int = 0
) -> ClusteredDifference:
    """The mean difference; prompts are drawn with all their items, because items of one prompt are alike.

    Args:
        differences: second minus first model on each item, from -1 to 1.
        prompts: the identity of each item's prompt.

    Raises:
        ValueError: there is no item.

    Source: Davison and Hinkley 1997, Bootstrap Methods and their Application, 3.8 (resampling whole clusters).
    Example: [1, 1, 0] on the prompts a, a, b has the mean 2/3; the second model is better on one of two prompts.
    """
    import numpy as np

    if not differences:
        raise ValueError("An interval needs at least one item.")
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(prompt, len(numbers)) for prompt in prompts]
    sums = np.bincount(places, weights=np.asarray(differences, dtype=np.float64))
    sizes = np.bincount(places)
    generator = np.random.default_rng(seed)
    at_once = max(1, _RESAMPLED_VALUES // sums.size)
    means = []
    for start in range(0, num_bootstrap, at_once):
        drawn = generator.integers(0, sums.size, size=(min(at_once, num_bootstrap - start), sums.size))
        means.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    num_better, num_worse = int((sums > 0).sum()), int((sums < 0).sum())
    return ClusteredDifference(
        difference=Metric(
            name="difference",
            value=float(sums.sum() / sizes.sum()),
            unit="fraction",
            ci_low=float(low),
            ci_high=float(high),
            count=len(places),
        ),
        num_prompts=len(numbers),
        num_better=num_better,
        num_worse=num_worse,
        p_value=mcnemar_p_value(num_better, num_worse),
    )
