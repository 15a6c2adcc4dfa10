"""Two models judged on the same items: difference with its paired bootstrap interval, and an exact test. Pure."""

from collections.abc import Sequence

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
    Example: [1, 1, 0, 0, -1] has the mean 0.2; what both get right or both wrong counts 0.
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
    """The chance that two equal models differ at least so unevenly on the items where only one of them is right.

    Exact and two-sided; 1 where they never differ.

    Source: McNemar 1947, Psychometrika 12(2); exact form: binomial with p = 1/2.
    Example: 8 better and 1 worse give 0.039.
    """
    from scipy import stats

    if num_better + num_worse == 0:
        return 1.0
    return float(stats.binomtest(num_better, num_better + num_worse, 0.5).pvalue)
