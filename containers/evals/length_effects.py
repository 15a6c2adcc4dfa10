"""What an edit of the same response does to its score: effects per doubling of the length, flips. Pure numpy.

Quality and labels cannot explain such an effect, since the response is the same before and after. Padding, repetition
and rewriting leave its content alone; cutting does not, so its effect is quality and length together.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from containers.contracts.certificate import PADDING, REPETITION, REWRITING, LengthIntervention, PaddingAttack
from containers.contracts.outcome import Metric
from containers.evals.answer_edits import CUTTING, LONGER_WORDING, SHORTER_WORDING
from containers.evals.intervals import clustered_ratio, mean_interval
from containers.evals.statistics import accuracy_metric, mean_metric, share_metric

# Each intervention with the edits that it pools.
_INTERVENTIONS = {
    PADDING: (PADDING,),
    REPETITION: (REPETITION,),
    REWRITING: (LONGER_WORDING, SHORTER_WORDING),
    LONGER_WORDING: (LONGER_WORDING,),
    SHORTER_WORDING: (SHORTER_WORDING,),
    CUTTING: (CUTTING,),
}
# With fewer prompts an interval would be a guess.
_FEWEST_PROMPTS = 3


@dataclass(frozen=True, slots=True)
class ScoredEdit:
    """A response before and after an edit.

    Attributes:
        rise: score after minus score before.
        doublings: log2(length after / length before), in characters.
    """

    kind: str
    prompt_id: str
    rise: float
    doublings: float


@dataclass(frozen=True, slots=True)
class PaddedPair:
    """The scores of a pair, and those of both sides with filler up to the same length."""

    prompt_id: str
    better: float
    worse: float
    padded_better: float
    padded_worse: float

    @property
    def flips(self) -> bool:
        """Whether the lower-scored side, padded, scores as high as the other one does without filler, or higher."""
        if self.better > self.worse:
            return self.padded_worse >= self.better
        return self.padded_better >= self.worse


@dataclass(frozen=True)
class EditedPairs:
    """The drawn pairs of a suite, edited and scored.

    Attributes:
        not_edited: (edit, reason) of each response without that edit.
        num_not_padded: pairs without room for filler.
    """

    edits: tuple[ScoredEdit, ...] = ()
    not_edited: tuple[tuple[str, str], ...] = ()
    padded: tuple[PaddedPair, ...] = ()
    num_not_padded: int = 0


def together(parts: Sequence[EditedPairs]) -> EditedPairs:
    """The edited pairs of several suites."""
    return EditedPairs(
        edits=tuple(chain.from_iterable(part.edits for part in parts)),
        not_edited=tuple(chain.from_iterable(part.not_edited for part in parts)),
        padded=tuple(chain.from_iterable(part.padded for part in parts)),
        num_not_padded=sum(part.num_not_padded for part in parts),
    )


def length_interventions(found: EditedPairs, *, score_std: float, confidence: float) -> tuple[LengthIntervention, ...]:
    """The figures of every intervention for which a response was drawn.

    Args:
        score_std: standard deviation of the scores of all responses; 0: no figure can be given.
    """
    figures = (
        _intervention(name, kinds, found, score_std=score_std, confidence=confidence)
        for name, kinds in _INTERVENTIONS.items()
    )
    return tuple(figure for figure in figures if figure.num_answers or figure.num_not_edited)


def _intervention(
    name: str, kinds: Sequence[str], found: EditedPairs, *, score_std: float, confidence: float
) -> LengthIntervention:
    edits = [edit for edit in found.edits if edit.kind in kinds]
    reasons = Counter(reason for kind, reason in found.not_edited if kind in kinds)
    prompts = [edit.prompt_id for edit in edits]
    known = LengthIntervention(
        name=name,
        num_answers=len(edits),
        num_prompts=len(set(prompts)),
        not_edited_because=tuple(sorted(reasons.items())),
        mean_doublings=float(np.mean([edit.doublings for edit in edits])) if edits else None,
    )
    if known.num_prompts < _FEWEST_PROMPTS or score_std <= 0:
        return known
    rises = [edit.rise / score_std for edit in edits]
    label = name.replace(" ", "_")
    return known.model_copy(
        update={
            "change": mean_metric(rises, name=f"{label}_change", unit="SD", confidence=confidence, clusters=prompts),
            "effect": _effect(edits, rises, name=f"{label}_effect", confidence=confidence),
        }
    )


def _effect(edits: Sequence[ScoredEdit], rises: Sequence[float], *, name: str, confidence: float) -> Metric:
    """SD per doubling: Σ doublings · rise / Σ doublings², so that edits that hardly change the length weigh little."""
    slope = clustered_ratio(
        [edit.doublings * rise for edit, rise in zip(edits, rises, strict=True)],
        [edit.doublings**2 for edit in edits],
        [edit.prompt_id for edit in edits],
    )
    low, high = mean_interval(slope, confidence=confidence)
    return Metric(
        name=name, value=slope.value, unit="SD per doubling", ci_low=low, ci_high=high, count=len(edits),
        num_prompts=slope.residuals.size,
    )  # fmt: skip


def padding_attack(found: EditedPairs, *, confidence: float) -> PaddingAttack:
    """Flips by filler on the rejected side, on the lower-scored side, and the accuracy with filler on both sides."""
    right = [pair for pair in found.padded if pair.better > pair.worse]
    decided = [pair for pair in found.padded if pair.better != pair.worse]
    rise = accuracy = None
    if right:
        rise = mean_metric(
            [pair.padded_worse - pair.worse for pair in right],
            name="padding_rise",
            unit="score",
            confidence=confidence,
            clusters=[pair.prompt_id for pair in right],
        )
    if found.padded:
        accuracy = accuracy_metric(
            [pair.padded_better - pair.padded_worse for pair in found.padded],
            name="padded_accuracy",
            confidence=confidence,
            clusters=[pair.prompt_id for pair in found.padded],
        )
    return PaddingAttack(
        num_pairs=len(right),
        num_not_padded=found.num_not_padded,
        flips=_flips(right, name="padding_flips", confidence=confidence),
        flips_of_either_order=_flips(decided, name="padding_flips_of_either_order", confidence=confidence),
        padded_accuracy=accuracy,
        mean_rise=rise,
    )


def _flips(pairs: Sequence[PaddedPair], *, name: str, confidence: float) -> Metric | None:
    if not pairs:
        return None
    flips = [float(pair.flips) for pair in pairs]
    return share_metric(flips, name=name, confidence=confidence, clusters=[pair.prompt_id for pair in pairs])
