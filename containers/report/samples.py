"""Prompts with their answers and scores, as the evaluations kept them."""

from collections.abc import Sequence

from containers.contracts.records import SCORE_TOLERANCE, SamplePrediction, SideBySide
from containers.document.model import Answer, Sample, Samples, Text


def scored_samples(samples: Sequence[SamplePrediction], *, name: str = "scored_samples") -> Samples:
    """Return pairs with both scores, from the most wrongly to the most rightly ordered one."""
    return Samples(name, tuple(map(_scored, samples)), "A blue edge marks the answer with the higher score.")


def side_by_side(samples: Sequence[SideBySide]) -> Samples:
    """Return what policy and reference wrote, from the largest loss of reward to the largest gain."""
    note = (
        "A blue edge marks the completion with the higher reward. A tie has none: the same text, or rewards no more "
        f"than {SCORE_TOLERANCE:g} apart."
    )
    return Samples("side_by_side", tuple(map(_beside, samples)), note)


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


def _beside(sample: SideBySide) -> Sample:
    tie = "tie: the same text" if sample.policy == sample.reference else "tie: equal rewards"
    outcomes = {
        "policy": Text("the policy wins", tone="good"),
        "reference": Text("the reference wins", tone="bad"),
    }
    same = sample.policy == sample.reference
    return Sample(
        sample.prompt,
        (
            Answer("policy", sample.policy, sample.reward_policy, sample.winner == "policy"),
            Answer("reference", sample.reference, sample.reward_reference, sample.winner == "reference"),
        ),
        Text(tie) if same else outcomes.get(sample.winner, Text(tie)),
    )
