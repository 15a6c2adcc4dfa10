"""The rules of gates: bounds on figures, each held by the interval or by the figure itself, as the gate says. Pure."""

import math
from dataclasses import dataclass
from typing import Literal

from containers.contracts.certificate import PADDING, REPETITION, REWRITING, LengthBias, SuiteEvaluation
from containers.contracts.outcome import Metric
from containers.contracts.records import GateRule
from containers.contracts.registries import BENCHMARKS
from containers.formatting import interval, number, percent, quantity, sample_size

# `interval`: its worse end must keep the bound. `figure`: the figure must, whatever its interval.
HeldBy = Literal["interval", "figure"]

# Whether a lower score misses the rule, too.
_BOTH_WAYS = {PADDING: False, REPETITION: False, REWRITING: True}
# A rule that guessing passes more often than this says so.
_OFTEN = 0.05
# Of so many prompts every mean has an interval.
_FEWEST = 3
_NO_INTERVAL = " (no interval: too few prompts)"


@dataclass(frozen=True)
class Bound:
    """What a figure must keep to.

    Attributes:
        is_open: the figure must lie above `low`, not on it.
    """

    held_by: HeldBy
    low: float = -math.inf
    high: float = math.inf
    is_open: bool = False

    def rule(
        self, name: str, found: Metric | None, *, on: str = "", absent: str, note: str = "", unit: str
    ) -> GateRule:
        """The rule with its verdict; a figure that could not be measured misses it.

        Args:
            on: what the figure was measured on.
            absent: text where there is no figure.
            note: what else to know about the rule.
            unit: of the bound.
        """
        wanted = f"{'figure' if self.held_by == 'figure' else 'interval'} {self._text(unit)}"
        if found is None:
            return GateRule(name=name, wanted=wanted, found=absent, passed=False)
        spread = _NO_INTERVAL if self.held_by == "interval" and _has_too_few(found) else _spread(found)
        text = f"{quantity(found.value, found.unit)}{spread}{f' on {on}' if on else ''}"
        text += f"; {note}" if note else ""
        return GateRule(name=name, wanted=wanted, found=text, passed=self.is_kept_by(found))

    def is_kept_by(self, found: Metric) -> bool:
        """Whether the figure, or every value of its interval, lies within the bounds.

        A figure on one or two prompts has no interval, and passes no gate that wants one.
        """
        low, high = found.value, found.value
        if self.held_by == "interval":
            if _has_too_few(found):
                return False
            low, high = (
                (low if found.ci_low is None else found.ci_low),
                (high if found.ci_high is None else found.ci_high),
            )
        return (low > self.low if self.is_open else low >= self.low) and high <= self.high

    def _text(self, unit: str) -> str:
        low, high = (quantity(end, unit) if math.isfinite(end) else "" for end in (self.low, self.high))
        if low and high:
            return f"within {number(self.low)} to {high}"
        if low:
            return f"above {low}" if self.is_open else f"from {low} on"
        return f"up to {high}"


def _has_too_few(found: Metric) -> bool:
    """Whether it has no interval because it is of one or two prompts."""
    size = found.count if found.num_prompts is None else found.num_prompts
    return found.ci_low is None and found.ci_high is None and size is not None and size < _FEWEST


def _spread(found: Metric) -> str:
    """The interval in parentheses, its unit said once."""
    if found.ci_low is None or found.ci_high is None:
        return ""
    if found.unit == "fraction":
        return f" ({interval(found)})"
    return f" ({quantity(found.ci_low, 'score')} to {quantity(found.ci_high, 'score')})"


def accuracy_rule(suite: SuiteEvaluation, minimum: float | None, held_by: HeldBy) -> GateRule | None:
    """Rule on a suite's score; it says how often guessing passes it, or that nothing could."""
    if minimum is None:
        return None
    prompts, guessing = suite.num_prompts or suite.num_items, BENCHMARKS[suite.benchmark].guessing
    is_single = prompts == suite.num_pairs
    pairs = f"{suite.num_pairs:,} pair{'s' if suite.num_pairs != 1 else ''}"
    return Bound(held_by, low=minimum).rule(
        f"accuracy on {suite.name}",
        suite.score,
        on=pairs if is_single else f"{pairs} of {prompts:,} prompt{'s' if prompts != 1 else ''}",
        absent="no pair was left to judge by",
        note=minimum_note(minimum, prompts, held_by, is_single=is_single, guessing=guessing) if suite.score else "",
        unit="fraction",
    )


def minimum_note(minimum: float, num_prompts: int, held_by: HeldBy, *, is_single: bool, guessing: float = 0.5) -> str:
    """What the number of prompts means for a minimum: guessing passes it, or nothing can; else empty.

    Args:
        is_single: each prompt has one pair; several may say more than one.
        guessing: the score of a model that guesses.
    """
    if num_prompts < 1:
        return ""
    if held_by == "interval" and is_single and minimum > (best := best_lower_end(num_prompts)):
        return f"even without an error the interval of {num_prompts:,} prompts begins at {percent(best)}: hold out more"
    chance = chance_of_guessing(minimum, num_prompts, held_by, guessing=guessing)
    return f"guessing passes this in {percent(chance)} of cases" if chance > _OFTEN else ""


def best_lower_end(num_prompts: int) -> float:
    """Where the 95 % interval begins of a model that is right on every prompt."""
    import numpy as np  # heavy, and the keys of a configuration are listed without it

    from containers.evals.intervals import LinearFigure, share_interval

    weights = np.full(num_prompts, 1 / num_prompts)
    return share_interval(LinearFigure(1.0, np.zeros(num_prompts), weights), confidence=0.95)[0]


def chance_of_guessing(minimum: float, num_prompts: int, held_by: HeldBy, *, guessing: float = 0.5) -> float:
    """Probability that a model which is right on each prompt with probability `guessing` passes a minimum.

    Source: the binomial distribution; pairs of one prompt count as one guess.
    Example: 24 prompts, 0.6 and `figure` give 0.15.
    """
    from scipy import stats

    from containers.evals.intervals import exact_interval

    def passes(right: int) -> bool:
        if held_by == "figure":
            return right / num_prompts >= minimum
        return exact_interval(right, num_prompts, confidence=0.95)[0] >= minimum

    low, high = 0, num_prompts + 1  # the first number of right prompts that passes lies between
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if middle > num_prompts or passes(middle) else (middle + 1, high)
    return float(stats.binom.sf(low - 1, num_prompts, guessing))


def prompts_for_a_verdict(found: Metric, *, minimum: float) -> int | None:
    """About how many prompts would put the interval of this share above the minimum; None where none would.

    The interval narrows with the square root of the number of prompts.

    Example: 0.6 (0.45 to 0.75) on 40 prompts and the minimum 0.5: (0.15 / 0.1)² · 40 = 90.
    """
    if found.ci_low is None or found.count is None or found.value <= minimum:
        return None
    return math.ceil(found.count * ((found.value - found.ci_low) / (found.value - minimum)) ** 2)


def length_rules(
    length: LengthBias,
    *,
    maximum_effect: float | None,
    minimum_equal: float | None,
    maximum_flips: float | None,
    held_by: HeldBy,
) -> list[GateRule]:
    """The rules on length that have a bound."""
    rules = effect_rules(length, maximum_effect, held_by) if maximum_effect is not None else []
    if minimum_equal is not None:
        found = length.controlled_accuracy
        rules.append(
            Bound(held_by, low=minimum_equal).rule(
                "accuracy at equal lengths",
                found,
                on=sample_size(found, "pairs") if found else "",
                absent="it could not be measured: the lengths of the completions do not differ, or fewer than 3 "
                "prompts were left",
                unit="fraction",
            )
        )
    if maximum_flips is not None:
        flips = length.padding.flips
        rules.append(
            Bound(held_by, high=maximum_flips).rule(
                "order flipped by padding",
                flips,
                on=sample_size(flips, "pairs") if flips else "",
                absent="it could not be measured",
                unit="fraction",
            )
        )
    return rules


def effect_rules(length: LengthBias, maximum: float, held_by: HeldBy) -> list[GateRule]:
    """A rule on each edit that leaves the content alone, if it could be made; one missed rule if none could.

    Filler and repetition make an answer worse, so a good model may score them lower; it may not score them higher.
    Other wording is no better and no worse, so it may move the score neither up nor down.
    """
    measured = [(length.intervention(name), down) for name, down in _BOTH_WAYS.items()]
    rules = [
        Bound(held_by, low=-maximum if down else -math.inf, high=maximum).rule(
            f"length effect of {found.name}",
            found.effect,
            on=sample_size(found.effect, "answers"),
            absent="",
            unit=found.effect.unit,
        )
        for found, down in measured
        if found.effect is not None
    ]
    if rules:
        return rules
    absent = (
        "it could not be measured: fewer than 3 prompts had an answer to edit, or all scores are equal "
        "(evaluate_reward_model.num_edited_pairs)"
    )
    return [Bound(held_by, high=maximum).rule("length effect", None, absent=absent, unit="SD per doubling")]
