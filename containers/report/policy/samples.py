"""Prompts with their answers and scores, as the evaluations kept them."""

from collections.abc import Sequence

from containers.contracts.records import SCORE_TOLERANCE, SamplePrediction, SideBySide
from containers.document.model import Answer, Sample, Samples, Text, Tone

_EXTREMES = 3
_TONES: dict[str, Tone] = {"policy": "good", "reference": "bad"}


def scored_samples(samples: Sequence[SamplePrediction], *, name: str = "scored_samples") -> Samples:
    """Return pairs with both scores, from the most wrongly to the most rightly ordered one."""
    return Samples(name, tuple(map(_scored, samples)), "A blue edge marks the answer with the higher score.")


def side_by_side(samples: Sequence[SideBySide], *, judges: Sequence[str] = ()) -> Samples:
    """Return what policy and reference wrote, from the largest loss of reward to the largest gain.

    Args:
        judges: names of the independent judges, whose word is shown as a win; a higher reward is none.
    """
    note = (
        "A blue edge marks the completion with the higher reward. A tie has none: the same text, or rewards no more "
        f"than {SCORE_TOLERANCE:g} apart."
    )
    return Samples("side_by_side", tuple(_beside(sample, judges) for sample in samples), note)


def extremes(samples: Sequence[SideBySide]) -> tuple[SideBySide, ...]:
    """Return the samples that tell most: the largest loss and gain of reward, and one on which judges differ.

    Args:
        samples: from the largest loss of reward to the largest gain.
    """
    if len(samples) <= _EXTREMES:
        return tuple(samples)
    between = samples[1:-1]
    apart = [sample for sample in between if len({winner for _, winner in sample.judged} | {sample.winner}) > 1]
    return (samples[0], (apart or between)[0], samples[-1])


def _scored(sample: SamplePrediction) -> Sample:
    margin = sample.score_chosen - sample.score_rejected
    outcome = Text("right order", tone="good") if margin > 0 else Text("wrong order", tone="bad")
    return Sample(
        sample.prompt,
        (
            Answer("chosen", sample.chosen, sample.score_chosen, margin > 0),
            Answer("rejected", sample.rejected, sample.score_rejected, margin < 0),
        ),
        outcome if margin else Text("tie"),
        margin,
        sample.domain,
    )


def _beside(sample: SideBySide, judges: Sequence[str]) -> Sample:
    return Sample(
        sample.prompt,
        (
            Answer("policy", sample.policy, sample.reward_policy, sample.winner == "policy"),
            Answer("reference", sample.reference, sample.reward_reference, sample.winner == "reference"),
        ),
        _outcome(sample, judges),
    )


def _outcome(sample: SideBySide, judges: Sequence[str]) -> Text:
    if sample.policy == sample.reference:
        return Text("tie: the same text")
    reward = "equal rewards" if sample.winner == "tie" else f"higher reward: the {sample.winner}"
    said = [(name, winner) for name, winner in sample.judged if name in judges]
    if not said:
        return Text(reward)
    texts = {"policy": "the policy is better", "reference": "the reference is better", "tie": "a tie"}
    words = "; ".join(f"{name}: {texts[winner] if winner else 'could not tell'}" for name, winner in said)
    tones: set[Tone] = {_TONES[winner] for _, winner in said if winner in _TONES}
    return Text(f"{words}; {reward}", tone=tones.pop() if len(tones) == 1 else None)
