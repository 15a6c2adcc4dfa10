"""Two models on the same items: the difference of a figure, with its interval over prompts, and McNemar's test."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from containers.contracts.outcome import Metric
from containers.evals.intervals import LinearFigure, clustered_mean, mean_interval

# A smaller difference of sums is rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class PairedDifference:
    """The difference of two models, the second minus the first.

    Attributes:
        difference: of the figure, with its t interval over prompts.
        num_prompts: different prompts among the items.
        num_better: prompts that add more to the second model's figure than to the first's.
        num_worse: prompts that add less.
        p_value: exact McNemar test over these prompts.
        figure: the difference with what each prompt adds to it.
    """

    difference: Metric
    num_prompts: int
    num_better: int
    num_worse: int
    p_value: float
    figure: LinearFigure


def clustered_difference(
    differences: Sequence[float], prompts: Sequence[str], *, confidence: float
) -> PairedDifference:
    """The mean difference, with its interval over prompts, because items of one prompt are alike.

    Args:
        differences: second minus first model on each item, from -1 to 1.
        prompts: the identity of each item's prompt.

    Raises:
        ValueError: there is no item.

    Example: [1, 1, 0] on the prompts a, a, b has the mean 2/3; the second model is better on one of two prompts.
    """
    mean = replace(clustered_mean(differences, prompts), kind="difference")
    return _difference(mean, count=len(differences), confidence=confidence)


def figure_difference(second: LinearFigure, first: LinearFigure, *, count: int, confidence: float) -> PairedDifference:
    """The difference of one figure of two models on the same items, which share their prompts in the same order.

    Args:
        count: items behind each figure.
    """
    residuals, parts = second.residuals - first.residuals, second.parts - first.parts
    figure = LinearFigure(
        second.value - first.value,
        residuals,
        first.weights,
        first.num_strata,
        parts,
        strata=first.strata,
        kind="difference",
    )
    return _difference(figure, count=count, confidence=confidence)


def mean_difference(parts: Sequence[PairedDifference], *, confidence: float) -> PairedDifference:
    """The plain mean of differences on several sets, which have no prompt in common."""
    figures, share = [part.figure for part in parts], 1 / len(parts)
    figure = LinearFigure(
        value=share * sum(figure.value for figure in figures),
        residuals=share * np.concatenate([figure.residuals for figure in figures]),
        weights=share * np.concatenate([figure.weights for figure in figures]),
        num_strata=sum(figure.num_strata for figure in figures),
        parts=share * np.concatenate([figure.parts for figure in figures]),
        strata=tuple(size for figure in figures for size in figure.strata or (figure.residuals.size,)),
        kind="difference",
    )
    count = sum(part.difference.count or 0 for part in parts)
    return _difference(figure, count=count, confidence=confidence)


def _difference(figure: LinearFigure, *, count: int, confidence: float) -> PairedDifference:
    low, high = mean_interval(figure, confidence=confidence)
    num_better, num_worse = int((figure.parts > _ROUNDING).sum()), int((figure.parts < -_ROUNDING).sum())
    return PairedDifference(
        # Of two shares: no more than one.
        difference=Metric(
            name="difference",
            value=figure.value,
            unit="fraction",
            ci_low=max(low, -1.0),
            ci_high=min(high, 1.0),
            count=count,
            num_prompts=figure.residuals.size,
        ),
        num_prompts=figure.residuals.size,
        num_better=num_better,
        num_worse=num_worse,
        p_value=mcnemar_p_value(num_better, num_worse),
        figure=figure,
    )


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """The p values as they count where several comparisons were made, in the given order.

    Source: Holm 1979, Scandinavian Journal of Statistics 6(2).
    Example: 0.01, 0.04 and 0.03 give 0.03, 0.06 and 0.06.
    """
    found, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        found[place] = largest
    return found


def mcnemar_p_value(num_better: int, num_worse: int) -> float:
    """Probability that two equal models differ at least this unevenly on the items where only one of them is right.

    Exact and two-sided; 1 if they never differ.

    Source: McNemar 1947, Psychometrika 12(2); exact form: binomial with p = 1/2.
    Example: 8 better and 1 worse give 0.039.
    """
    from scipy import stats  # heavy: a second, and only a comparison needs it

    if num_better + num_worse == 0:
        return 1.0
    return float(stats.binomtest(num_better, num_better + num_worse, 0.5).pvalue)
