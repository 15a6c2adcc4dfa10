"""Figures of a standard set from the values of its items: each model's share, paired differences, parts."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from containers.contracts.outcome import Metric
from containers.evals.intervals import detectable
from containers.evals.paired import PairedDifference, clustered_difference
from containers.evals.pass_at_k import pass_at_k
from containers.evals.sets.records import ModelDifference, ModelScore, SetModel, SetPart
from containers.evals.statistics import share_metric

_POWER = 0.8
_MAX_PARTS = 40


@dataclass(frozen=True)
class ItemValues:
    """What the rule says of the answers to one item.

    Attributes:
        values: by model, of each of its answers: 1 right, 0 wrong.
        ended: by model, whether each answer ended by itself.
        untold: why the rule could not tell about one of the answers; empty: it could tell about all.
    """

    item_id: str
    prompt_id: str
    subset: str
    values: Mapping[SetModel, tuple[float, ...]]
    ended: Mapping[SetModel, tuple[bool, ...]]
    untold: str = ""

    def mean(self, model: SetModel) -> float:
        """Share of that model's answers that are right."""
        return fmean(self.values[model])


def told(items: Sequence[ItemValues]) -> list[ItemValues]:
    """The items about which the rule could tell, of every model; only these compare."""
    return [item for item in items if not item.untold]


def untold_reasons(items: Sequence[ItemValues]) -> tuple[tuple[str, int], ...]:
    """Why the rule could not tell, with the number of items, the most frequent reason first."""
    return tuple(Counter(item.untold for item in items if item.untold).most_common())


def model_scores(
    items: Sequence[ItemValues], models: Sequence[SetModel], *, name: str, confidence: float
) -> tuple[ModelScore, ...]:
    """Each model's share of right answers with its interval over prompts; nothing without an item.

    Args:
        name: of the set; begins the names of its metrics.
    """
    if not items:
        return ()
    prompts = [item.prompt_id for item in items]
    found = []
    for model in models:
        means = [item.mean(model) for item in items]
        ended = [fmean(map(float, item.ended[model])) for item in items]
        found.append(
            ModelScore(
                model=model,
                score=share_metric(means, name=f"{name}_{model}", confidence=confidence, clusters=prompts),
                pass_at=pass_at_k(
                    [item.values[model] for item in items], name=f"{name}_{model}_pass_at", confidence=confidence
                ),
                ended=share_metric(ended, name=f"{name}_{model}_ended", confidence=confidence, clusters=prompts),
            )
        )
    return tuple(found)


def paired(
    items: Sequence[ItemValues], second: SetModel, first: SetModel, *, confidence: float
) -> PairedDifference | None:
    """The difference of two models on the same items, second minus first; None without an item."""
    if not items:
        return None
    differences = [item.mean(second) - item.mean(first) for item in items]
    return clustered_difference(differences, [item.prompt_id for item in items], confidence=confidence)


def model_differences(
    items: Sequence[ItemValues], models: Sequence[SetModel], *, name: str, confidence: float
) -> tuple[ModelDifference, ...]:
    """Each later model against each earlier one."""
    found = []
    for first, second in combinations(models, 2):
        pair = paired(items, second, first, confidence=confidence)
        if pair is None:
            continue
        found.append(
            ModelDifference(
                second=second,
                first=first,
                difference=_named(pair.difference, f"{name}_{second}_minus_{first}"),
                num_better=pair.num_better,
                num_worse=pair.num_worse,
                p_value=pair.p_value,
                detectable=detectable(pair.figure, confidence=confidence, power=_POWER),
            )
        )
    return tuple(found)


def set_parts(items: Sequence[ItemValues], models: Sequence[SetModel]) -> tuple[SetPart, ...]:
    """Each model's share in each part of the set, the largest part first; nothing where it has one part."""
    parts: defaultdict[str, list[ItemValues]] = defaultdict(list)
    for item in items:
        parts[item.subset].append(item)
    if len(parts) < 2:
        return ()
    ordered = sorted(parts.items(), key=lambda part: (-len(part[1]), part[0]))
    return tuple(
        SetPart(
            name=name or "other",
            num_items=len(own),
            scores=tuple(fmean(item.mean(model) for item in own) for model in models),
        )
        for name, own in ordered[:_MAX_PARTS]
    )


def _named(metric: Metric, name: str) -> Metric:
    return metric.model_copy(update={"name": name})
