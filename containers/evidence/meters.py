"""Meters: what tells without any judge that a policy has left what was known about it. Pure.

A meter says that a policy is elsewhere, and never that it is worse: distance from the data rang in 8 of 8 harmless
runs of a simulation (docs/proofs/evidence.md). So over its limit it asks for a look before its turn.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from containers.contracts.evidence import MeterLimit
from containers.formatting import number, percent
from containers.rollouts.generate import Completion

# A meter is its mean over so many steps, and says nothing before.
_WINDOW = 8
# Standard deviations of single answers by which the mean answer may differ from the trusted policy's.
_DEVIATIONS = 2.0
# Share of what is left up to 1 by which a share may grow, and share of itself by which one may fall.
_SHARE_OF_REST = 0.5
_TIMES_AS_MUCH_DISAGREEMENT = 2.0
_WORDS_OF_A_PHRASE = 4
# By the name of the curve.
_TEXTS = {
    "completion_length": "the answers have {found} tokens, {limit}",
    "repeated_phrases_fraction": "{found} of the phrases of an answer repeat one before, {limit}",
    "distinct_phrases_fraction": "{found} of the phrases of all answers are different ones, {limit}",
    "identical_completions_fraction": "{found} of the answers equal another one to the same prompt, {limit}",
    "reward_state_outlier_fraction": "{found} of the answers are unlike the start model's to the reward model, {limit}",
    "padding_rise": "padding adds {found} to the reward of an answer, {limit}",
    "reward_disagreement": "the reward models disagree by {found}, {limit}",
    "kl": "the policy is {found} nats from the start model, {limit}",
}
_FRACTIONS = ("repeated_phrases_fraction", "identical_completions_fraction", "reward_state_outlier_fraction")
_DISTINCT = "distinct_phrases_fraction"
# Of these the smallest start that a limit can be made from.
_SMALLEST_DISAGREEMENT = 1e-6


def repetition(tokens: Sequence[int]) -> float:
    """Return the share of phrases of four tokens that the text has had before.

    Example: a b c d a b c d has five phrases, of which one repeats the first: 0.2.
    """
    return 1 - _distinct([tokens])


def distinctness(answers: Iterable[Sequence[int]]) -> float:
    """Return distinct-4 (Li et al. 2016, arXiv:1510.03055): the share of different phrases among those of all answers.

    It falls where different prompts get the same phrases, which neither repetition within an answer nor equal answers
    to one prompt shows. 1 if there is no phrase.
    """
    return _distinct(answers)


def _distinct(answers: Iterable[Sequence[int]]) -> float:
    phrases = Counter(
        phrase
        for tokens in answers
        for phrase in zip(*(tokens[start:] for start in range(_WORDS_OF_A_PHRASE)), strict=False)
    )
    total = sum(phrases.values())
    return len(phrases) / total if total else 1.0


def limits_of(
    answers: Sequence[Completion], figures: Mapping[str, float], *, maximum_kl: float | None = None
) -> dict[str, MeterLimit]:
    """Return the limits that a policy sets which is trusted.

    Args:
        answers: some of its completions in training, at least one.
        figures: the curves of that step; a meter without a curve has no limit.
        maximum_kl: as configured.
    """
    lengths = [float(len(answer.completion_ids)) for answer in answers]
    mean, room = fmean(lengths), _DEVIATIONS * pstdev(lengths)
    found = [
        MeterLimit(
            name="completion_length",
            start=mean,
            low=mean - room if mean > room else None,
            high=mean + max(room, 1.0),
        )
    ]
    for name in _FRACTIONS:
        if name in figures:
            start = figures[name]
            found.append(MeterLimit(name=name, start=start, high=start + _SHARE_OF_REST * (1 - start)))
    if _DISTINCT in figures:
        start = figures[_DISTINCT]
        found.append(MeterLimit(name=_DISTINCT, start=start, low=start * (1 - _SHARE_OF_REST)))
    if "padding_rise_spread" in figures:
        start, room = figures["padding_rise"], _DEVIATIONS * figures["padding_rise_spread"]
        found.append(MeterLimit(name="padding_rise", start=start, high=start + room))
    disagreement = figures.get("reward_disagreement", 0.0)
    if disagreement > _SMALLEST_DISAGREEMENT:
        high = _TIMES_AS_MUCH_DISAGREEMENT * disagreement
        found.append(MeterLimit(name="reward_disagreement", start=disagreement, high=high))
    if maximum_kl is not None:
        found.append(MeterLimit(name="kl", start=0.0, high=maximum_kl))
    return {limit.name: limit for limit in found}


@dataclass
class Meters:
    """Follows the meters while the policy trains.

    Attributes:
        limits: by name.
        recent: newest values of each.
        muted: meters that have asked for a look; they say nothing until the next one that is due.
    """

    limits: dict[str, MeterLimit] = field(default_factory=dict)
    recent: dict[str, deque[float]] = field(default_factory=dict)
    muted: set[str] = field(default_factory=set)

    def take(self, figures: Mapping[str, float]) -> list[str]:
        """Take in a step's figures; return a clause for each meter that has left its limits."""
        for name in _TEXTS.keys() & figures.keys():
            value = figures[name]
            self.recent.setdefault(name, deque(maxlen=_WINDOW)).append(value)
        return [text for name, limit in self.limits.items() if (text := self._over(name, limit))]

    def _over(self, name: str, limit: MeterLimit) -> str:
        values = self.recent.get(name, ())
        if name in self.muted or len(values) < _WINDOW:
            return ""
        mean = fmean(values)
        shown = percent if name.endswith("_fraction") else number
        for side, bound in (("above", limit.high), ("below", limit.low)):
            if bound is not None and (mean > bound if side == "above" else mean < bound):
                self.muted.add(name)
                return _TEXTS[name].format(found=shown(mean), limit=f"{side} the limit of {shown(bound)}")
        return ""

    def reset(self, limits: Mapping[str, MeterLimit]) -> None:
        """Go on with these limits, since another policy is trusted."""
        self.limits = dict(limits)
        self.muted.clear()

    def state(self) -> dict[str, Any]:
        """Return what a resumed training needs, as JSON values."""
        return {
            "limits": [limit.model_dump(mode="json") for limit in self.limits.values()],
            "recent": {name: list(values) for name, values in self.recent.items()},
            "muted": sorted(self.muted),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from that state."""
        limits: Iterable[MeterLimit] = map(MeterLimit.model_validate, state["limits"])
        self.limits = {limit.name: limit for limit in limits}
        self.recent = {name: deque(values, maxlen=_WINDOW) for name, values in state["recent"].items()}
        self.muted = set(state["muted"])
