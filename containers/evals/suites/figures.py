"""Figures with intervals from the scores of items: shares, and weighted means of shares.

Items with the same prompt are no independent evidence: every interval is over prompts. It is stratified: the prompts of
each subset vary around that subset's mean, because the published weights of the subsets are fixed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from containers.contracts.outcome import Metric
from containers.evals.intervals import Floats, LinearFigure, clustered_mean, share_interval
from containers.evals.statistics import share_metric
from containers.evals.suites.base import Intervals, ScoredItem, SuiteFigures
from containers.harness.errors import DivergedError

# The credit of each item (0 wrong, 1 right, between them a tie), and its prompt.
Credits = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Estimate:
    """A figure, what each prompt adds to it, and the number of its items.

    Attributes:
        strata: name → residuals, weights and parts of its prompts, as in `LinearFigure`. Figures of one name have the
            same prompts in the same order, so what they have in common is not taken for independent.
    """

    value: float
    strata: Mapping[str, tuple[Floats, Floats, Floats]]
    count: int

    @property
    def figure(self) -> LinearFigure:
        """All strata together."""
        residuals, weights, parts = map(np.concatenate, zip(*self.strata.values(), strict=True))
        sizes = tuple(stratum[0].size for stratum in self.strata.values())
        return LinearFigure(
            self.value, residuals, weights, num_strata=len(sizes), parts=parts, strata=sizes, kind="share"
        )

    def metric(self, name: str, intervals: Intervals) -> Metric:
        """The figure with its interval."""
        figure = self.figure
        low, high = share_interval(figure, confidence=intervals.confidence)
        return Metric(
            name=name,
            value=self.value,
            unit="fraction",
            ci_low=low,
            ci_high=high,
            count=self.count,
            num_prompts=figure.residuals.size,
        )


def mean_estimate(credits: Credits, *, stratum: str) -> Estimate:
    """The mean over items."""
    values, prompts = zip(*credits, strict=True)
    mean = clustered_mean(values, prompts)
    return Estimate(mean.value, {stratum: (mean.residuals, mean.weights, mean.parts)}, len(credits))


def weighted(parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    """The weighted mean of parts; the weights need not add up to one.

    Example: 0.5 with weight 1 and 1.0 with weight 3 give 0.875.
    """
    total = math.fsum(weight for weight, _ in parts)
    strata: dict[str, tuple[Floats, Floats, Floats]] = {}
    for weight, part in parts:
        for name, arrays in part.strata.items():
            residuals, weights, added = (weight / total * array for array in arrays)
            if name in strata:
                before = strata[name]
                residuals, weights, added = before[0] + residuals, before[1] + weights, before[2] + added
            strata[name] = (residuals, weights, added)
    return Estimate(
        value=math.fsum(weight * part.value for weight, part in parts) / total,
        strata=strata,
        count=sum(part.count for _, part in parts),
    )


def share(credits: Credits, name: str, intervals: Intervals, *, margins: Sequence[float] | None = None) -> Metric:
    """The mean of the credits with its interval; the margins behind them tell how alike those of a prompt are."""
    values, prompts = zip(*credits, strict=True)
    return share_metric(values, name=name, confidence=intervals.confidence, clusters=prompts, scores=margins)


def shares(groups: Mapping[str, Credits], intervals: Intervals) -> tuple[Metric, ...]:
    """One share per group, in the order of the groups."""
    return tuple(share(credits, name, intervals) for name, credits in groups.items())


def plain_figures(scored: Sequence[ScoredItem], intervals: Intervals) -> SuiteFigures:
    """The share of pairs ordered rightly, as a whole and by subset; a tie counts half. For suites without weights."""
    if not scored:
        return SuiteFigures(score=None)
    groups = by_subset(scored)
    margins = [_margin(entry) for entries in groups.values() for entry in entries]
    return pooled_figures(pair_credits(groups, tie=0.5), intervals, margins=margins)


def pooled_figures(
    credits: Mapping[str, Credits], intervals: Intervals, *, margins: Sequence[float] | None = None
) -> SuiteFigures:
    """The share over the items of all groups, and each group's.

    Args:
        margins: of all items, group by group.
    """
    if not credits:
        return SuiteFigures(score=None)
    everything = joined(credits.values())
    return SuiteFigures(
        score=share(everything, "score", intervals, margins=margins),
        whole=mean_estimate(everything, stratum="all").figure,
        subsets=shares(credits, intervals),
    )


def section_figures(
    scored: Sequence[ScoredItem],
    intervals: Intervals,
    *,
    sections: Mapping[str, Mapping[str, float]],
    tie: float,
    score_of: Literal["sections", "subsets"],
) -> SuiteFigures:
    """Compute sections as weighted means of their subsets of pairs, and the score as a plain mean.

    If a subset is missing, its section is the mean of the others.

    Args:
        sections: section → subset → its weight in the section.
        tie: the credit of equal scores.
        score_of: what the score is the mean of.
    """
    known = [subset for weights in sections.values() for subset in weights]
    credits = pair_credits(by_subset(scored, known), tie=tie)
    missing = tuple(subset for subset in known if subset not in credits)
    if not credits:
        return SuiteFigures(score=None, missing=missing)
    means = {name: mean_estimate(found, stratum=name) for name, found in credits.items()}
    parts = {
        section: [(weight, means[subset]) for subset, weight in weights.items() if subset in means]
        for section, weights in sections.items()
    }
    estimates = {section: weighted(found) for section, found in parts.items() if found}
    counted = estimates if score_of == "sections" else means
    score = weighted([(1.0, part) for part in counted.values()])
    return SuiteFigures(
        score=score.metric("score", intervals),
        whole=score.figure,
        shares=_shares(parts, by_section=score_of == "sections"),
        sections=tuple(estimate.metric(name, intervals) for name, estimate in estimates.items()),
        subsets=shares(credits, intervals),
        missing=missing,
    )


def _shares(parts: Mapping[str, Sequence[tuple[float, Estimate]]], *, by_section: bool) -> dict[str, float]:
    """The share of each subset in the score."""
    found: dict[str, float] = {}
    for section in filter(None, parts.values()):
        whole = math.fsum(weight for weight, _ in section)
        for weight, estimate in section:
            (subset,) = estimate.strata
            found[subset] = weight / whole if by_section else 1.0
    total = math.fsum(found.values())
    return {subset: share / total for subset, share in found.items()}


def by_subset(scored: Sequence[ScoredItem], order: Sequence[str] = ()) -> dict[str, list[ScoredItem]]:
    """Group items by subset: first the subsets of `order` that have items, then the others by name.

    Within a subset they are sorted by id, so that figures do not depend on the order of the rows.

    Raises:
        DivergedError: a score is not finite.
        ValueError: an item has more or fewer scores than responses.
    """
    groups: dict[str, list[ScoredItem]] = defaultdict(list)
    for entry in sorted(scored, key=lambda entry: entry.item.item_id):
        _check(entry)
        groups[entry.item.subset].append(entry)
    names = [*(name for name in order if name in groups), *sorted(set(groups) - set(order))]
    return {name: groups[name] for name in names}


def _check(entry: ScoredItem) -> None:
    if len(entry.scores) != len(entry.item.responses):
        raise ValueError(
            f"Item {entry.item.item_id} has {len(entry.item.responses)} responses and {len(entry.scores)} scores."
        )
    bad = next((score for score in entry.scores if not math.isfinite(score)), None)
    if bad is not None:
        raise DivergedError(
            f"The reward model's score of item {entry.item.item_id} ({entry.item.subset}) is {bad}. "
            "No figure can be computed; the model or its precision is broken. Score it in float32, or train it again "
            "with a lower learning rate."
        )


def pair_credits(groups: Mapping[str, Sequence[ScoredItem]], *, tie: float) -> dict[str, Credits]:
    """The credits of pairs, by group: 1 if an item's better response scores higher, 0 if lower, `tie` if equal."""

    def credit(entry: ScoredItem) -> float:
        margin = _margin(entry)
        return tie if margin == 0 else float(margin > 0)

    return {name: credits_of(entries, credit) for name, entries in groups.items()}


def _margin(entry: ScoredItem) -> float:
    pair = entry.item.comparisons[0]
    return entry.scores[pair.better] - entry.scores[pair.worse]


def credits_of(entries: Sequence[ScoredItem], credit: Callable[[ScoredItem], float]) -> Credits:
    """The credits of items by a rule."""
    return [(credit(entry), entry.item.prompt_id) for entry in entries]


def joined(groups: Iterable[Credits]) -> Credits:
    """The credits of all groups."""
    return [found for credits in groups for found in credits]
