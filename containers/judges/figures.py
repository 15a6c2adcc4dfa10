"""Figures of a judge: win rate, the same at equal lengths, mean values, pass@k; each with its interval over prompts."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from containers.contracts.configs.parts.judges import Judge
from containers.contracts.outcome import Metric
from containers.contracts.records import JudgeFigures, PeopleFigures
from containers.evals.intervals import share_interval
from containers.evals.paired import holm_adjusted, mcnemar_p_value
from containers.evals.pass_at_k import pass_at_k
from containers.evals.statistics import mean_metric, share_metric
from containers.judges.base import Pair, Places, Verdict
from containers.judges.length_control import length_controlled_share

# A judge that could not tell about more than this share is no judge.
_MOST_UNTOLD = 0.5


@dataclass(frozen=True)
class Judgement:
    """What one judge said about all pairs.

    Attributes:
        shown: who it is, for people.
        part: what it had to do with the training, as a clause; empty: nothing.
        places: how much the order decided, of a judge that sees one.
        people: who judged, of a judge that is people.
    """

    judge: Judge
    verdicts: Sequence[Verdict]
    shown: str
    part: str
    places: Places | None = None
    people: PeopleFigures | None = None


def all_figures(
    judgements: Sequence[Judgement], pairs: Sequence[Pair], prompt_ids: Sequence[str], *, confidence: float
) -> tuple[JudgeFigures, ...]:
    """Return the figures of every judge; p values are adjusted for their number.

    Args:
        pairs: in the order of each judgement's verdicts.
        prompt_ids: the prompt of each pair.
    """
    found = [_figures(judgement, pairs, prompt_ids, confidence=confidence) for judgement in judgements]
    known = [figures.p_value for figures in found if figures.p_value is not None]
    adjusted = iter(holm_adjusted(known))
    return tuple(
        figures if figures.p_value is None else figures.model_copy(update={"p_adjusted": next(adjusted)})
        for figures in found
    )


def _figures(
    judgement: Judgement, pairs: Sequence[Pair], prompt_ids: Sequence[str], *, confidence: float
) -> JudgeFigures:
    name = judgement.judge.name
    told = [place for place, verdict in enumerate(judgement.verdicts) if verdict.points is not None]
    num_asked = sum(verdict.was_asked for verdict in judgement.verdicts)
    reasons = Counter(verdict.reason for verdict in judgement.verdicts if verdict.points is None and verdict.was_asked)
    points = [_points(judgement.verdicts[place]) for place in told]
    base = JudgeFigures(
        name=name,
        type=judgement.judge.type,
        shown=judgement.shown,
        part_in_training=judgement.part,
        num_pairs=max(1, num_asked),
        num_prompts=len({prompt_ids[place] for place in told}),
        untold=tuple(reasons.most_common()),
        num_wins=sum(value > 0.5 for value in points),
        num_ties=sum(value == 0.5 for value in points),
        num_losses=sum(value < 0.5 for value in points),
        first_share=None if judgement.places is None else judgement.places.first_share,
        agreement=None if judgement.places is None else judgement.places.agreement,
        people=judgement.people,
        problem=_problem(len(told), num_asked, reasons) or (judgement.places.problem if judgement.places else ""),
    )
    if not told:
        return base
    by_prompt = _by_prompt(prompt_ids, told, points)
    update: dict[str, object] = {
        "win_rate": share_metric([fmean(of) for of in by_prompt], name=f"{name}_win_rate", confidence=confidence),
        "p_value": mcnemar_p_value(sum(fmean(of) > 0.5 for of in by_prompt), sum(fmean(of) < 0.5 for of in by_prompt)),
        "length_controlled": _at_equal_lengths(
            name, [pairs[place] for place in told], points, [prompt_ids[place] for place in told], confidence=confidence
        ),
    }
    if all(judgement.verdicts[place].values is not None for place in told):
        update |= _values(judgement, prompt_ids, told, confidence=confidence)
    return base.model_copy(update=update)


def _points(verdict: Verdict) -> float:
    if verdict.points is None:
        raise ValueError("This verdict tells nothing.")
    return verdict.points


def _problem(num_told: int, num_pairs: int, reasons: Counter[str]) -> str:
    """Return why it is no judge of this policy; empty if it is one."""
    if num_pairs - num_told <= _MOST_UNTOLD * num_pairs:
        return ""
    reason, _ = reasons.most_common(1)[0]
    return f"it could not tell about {num_pairs - num_told:,} of {num_pairs:,} pairs, mostly since {reason}"


def _by_prompt(prompt_ids: Sequence[str], places: Sequence[int], values: Sequence[float]) -> list[list[float]]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for place, value in zip(places, values, strict=True):
        found[prompt_ids[place]].append(value)
    return list(found.values())


def _at_equal_lengths(
    name: str, pairs: Sequence[Pair], points: Sequence[float], prompt_ids: Sequence[str], *, confidence: float
) -> Metric | None:
    found = length_controlled_share(
        points,
        lengths=[len(pair.policy.text) for pair in pairs],
        baseline_lengths=[len(pair.reference.text) for pair in pairs],
        prompt_ids=prompt_ids,
    )
    if found is None:
        return None
    value, figure = found
    low, high = (None, None) if figure is None else share_interval(figure, confidence=confidence)
    return Metric(
        name=f"{name}_win_rate_at_equal_lengths", value=value, unit="fraction", ci_low=low, ci_high=high,
        count=len(points), num_prompts=len(set(prompt_ids)),
    )  # fmt: skip


def _values(
    judgement: Judgement, prompt_ids: Sequence[str], told: Sequence[int], *, confidence: float
) -> dict[str, object]:
    """Return the mean value of both sides and their difference; of an outcome the shares of right completions."""
    name, values = judgement.judge.name, [judgement.verdicts[place].values or (0.0, 0.0) for place in told]
    # A function may say that it tells right from wrong, and give other values all the same.
    is_outcome = getattr(judgement.judge, "is_outcome", False) and {0.0, 1.0}.issuperset(chain.from_iterable(values))
    sides = zip(*values, strict=True)
    policy, reference = (_by_prompt(prompt_ids, told, side) for side in sides)
    gains = [fmean(own) - fmean(other) for own, other in zip(policy, reference, strict=True)]
    unit = "fraction" if is_outcome else "score"

    def mean(of_side: Sequence[Sequence[float]], side: str) -> Metric:
        means = [fmean(own) for own in of_side]
        if is_outcome:
            return share_metric(means, name=f"{name}_{side}", confidence=confidence)
        return mean_metric(means, name=f"{name}_{side}", unit=unit, confidence=confidence)

    return {
        "is_outcome": is_outcome,
        "policy": mean(policy, "policy"),
        "reference": mean(reference, "reference"),
        "difference": mean_metric(gains, name=f"{name}_difference", unit=unit, confidence=confidence),
        "pass_at": pass_at_k(policy, name=f"{name}_pass_at", confidence=confidence) if is_outcome else (),
        "reference_pass_at": (
            pass_at_k(reference, name=f"{name}_reference_pass_at", confidence=confidence) if is_outcome else ()
        ),
    }
