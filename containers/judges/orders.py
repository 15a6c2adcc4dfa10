"""Pairs that are shown in both orders: what counts as a verdict, and how much the place of an answer decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from containers.judges.base import Places, Verdict

# What was chosen of two answers as they were shown; None: it could not be read.
Choice = Literal["first", "second", "tie"]
_OTHER: dict[Choice, Choice] = {"first": "second", "second": "first", "tie": "tie"}


@dataclass(frozen=True)
class Shown:
    """What a judge chose of a pair in one order.

    Attributes:
        choice: None where it could not be read.
        reason: why it could not.
    """

    choice: Choice | None
    reason: str = ""


def verdict_of(policy_first: Shown, reference_first: Shown) -> Verdict:
    """Return the verdict on a pair that was shown in both orders.

    The better answer is the one that was chosen in both; else it is a tie. A choice that could not be read in either
    order is none.
    """
    for shown in (policy_first, reference_first):
        if shown.choice is None:
            return Verdict(None, shown.reason)
    first, second = policy_first.choice, _OTHER[reference_first.choice or "tie"]
    if first != second:
        return Verdict(0.5)
    return Verdict({"first": 1.0, "second": 0.0, "tie": 0.5}[first or "tie"])


def places_of(pairs: Sequence[tuple[Shown, Shown]]) -> Places:
    """Return how much places decided, from pairs shown with the policy first and with the reference first."""
    choices = [shown.choice for pair in pairs for shown in pair if shown.choice in ("first", "second")]
    read = [(a.choice, _OTHER[b.choice]) for a, b in pairs if a.choice is not None and b.choice is not None]
    return Places(
        num_choices=len(choices),
        first_share=sum(choice == "first" for choice in choices) / len(choices) if choices else 0.5,
        agreement=sum(a == b for a, b in read) / len(read) if read else 0.0,
    )
