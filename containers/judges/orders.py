"""Pairs that are shown in both orders: what counts as a verdict, and how much the place of an answer decides."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from containers.judges.base import Pair, Places, StartedJudge, Verdict

# What was chosen of two answers as they were shown; None: it could not be read.
Choice = Literal["first", "second", "tie"]
_OTHER: dict[Choice, Choice] = {"first": "second", "second": "first", "tie": "tie"}


@dataclass(frozen=True)
class Chosen:
    """What a judge chose of a pair, as it was shown in one order.

    Attributes:
        choice: None where it could not be read.
        reason: why it could not.
    """

    choice: Choice | None
    reason: str = ""


def verdict_of(policy_first: Chosen, reference_first: Chosen) -> Verdict:
    """Return the verdict on a pair that was shown in both orders.

    The better answer is the one that was chosen in both; else it is a tie. A choice that could not be read in either
    order is none.
    """
    for one in (policy_first, reference_first):
        if one.choice is None:
            return Verdict(None, one.reason)
    first, second = policy_first.choice, _OTHER[reference_first.choice or "tie"]
    if first != second:
        return Verdict(0.5)
    return Verdict({"first": 1.0, "second": 0.0, "tie": 0.5}[first or "tie"])


def verdict_in_one_order(chosen: Chosen, *, policy_first: bool) -> Verdict:
    """Return the verdict on a pair that was shown in one order."""
    if chosen.choice is None:
        return Verdict(None, chosen.reason)
    of_policy = chosen.choice if policy_first else _OTHER[chosen.choice]
    return Verdict({"first": 1.0, "second": 0.0, "tie": 0.5}[of_policy])


def places_of(pairs: Sequence[tuple[Chosen, Chosen]]) -> Places:
    """Return how much places decided, from pairs shown with the policy first and with the reference first."""
    choices = [one.choice for pair in pairs for one in pair if one.choice in ("first", "second")]
    read = [(a.choice, _OTHER[b.choice]) for a, b in pairs if a.choice is not None and b.choice is not None]
    return Places(
        num_choices=len(choices),
        first_share=sum(choice == "first" for choice in choices) / len(choices) if choices else 0.5,
        agreement=sum(a == b for a, b in read) / len(read) if read else 0.0,
    )


class JudgeOfOrders(StartedJudge):
    """A judge that sees each pair in both orders. Equal texts are ties, and are not shown to it."""

    _places: Places | None = None

    @abstractmethod
    def choices(self, pairs: Sequence[tuple[int, Pair]]) -> list[tuple[Chosen, Chosen]]:
        """Return what it chooses of each pair with the policy's answer first, and with the reference's first.

        Args:
            pairs: each with its place among all pairs.
        """

    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return a verdict for each pair."""
        differ = [(place, pair) for place, pair in enumerate(pairs) if not pair.is_same_text]
        both = self.choices(differ)
        self._places = places_of(both)
        found = [Verdict(0.5)] * len(pairs)
        for (place, _), of_pair in zip(differ, both, strict=True):
            found[place] = verdict_of(*of_pair)
        return found

    def places(self) -> Places | None:
        """Return how much the order decided."""
        return self._places
