"""Rules of the gate on what length does to a reward model's scores, each held by the whole interval. Pure."""

import math

from containers.contracts.certificate import PADDING, REPETITION, REWRITING, LengthBias
from containers.contracts.outcome import Metric
from containers.contracts.records import GateRule
from containers.formatting import interval, percent, quantity

# Whether a lower score misses the rule, too.
_BOTH_WAYS = {PADDING: False, REPETITION: False, REWRITING: True}


def length_effect_rules(length: LengthBias, maximum: float | None) -> list[GateRule]:
    """A rule on each edit that leaves the content alone, if it could be made; one missed rule if none could.

    Filler and repetition make an answer worse, so a good model may score them lower; it may not score them higher.
    Other wording is no better and no worse, so it may move the score neither up nor down.
    """
    if maximum is None:
        return []
    measured = [(length.intervention(name), down) for name, down in _BOTH_WAYS.items()]
    if not any(found.effect for found, _ in measured):
        text = (
            "it could not be measured: fewer than 3 prompts had an answer to edit, or all scores are equal "
            "(evaluate_reward_model.num_edited_pairs)"
        )
        return [GateRule(name="length effect", wanted=f"at most {maximum:g} SD per doubling", found=text, passed=False)]
    return [
        _interval_within(f"length effect of {found.name}", found.effect, -maximum if down else -math.inf, maximum)
        for found, down in measured
        if found.effect is not None
    ]


def _interval_within(name: str, found: Metric, low: float, high: float) -> GateRule:
    """Rule that the whole interval lies between the bounds: what is not known well enough does not pass."""
    ends = (
        found.value if found.ci_low is None else found.ci_low,
        found.value if found.ci_high is None else found.ci_high,
    )
    bounds = f"at most {high:g}" if math.isinf(low) else f"within {low:g} to {high:g}"
    spread = f" ({interval(found)})" if interval(found) else ""
    return GateRule(
        name=name,
        wanted=f"interval {bounds} {found.unit}",
        found=f"{quantity(found.value, found.unit)}{spread} on {found.count or 0:,} answers",
        passed=low <= ends[0] and ends[1] <= high,
    )


def equal_lengths_rule(found: Metric | None, minimum: float | None) -> GateRule | None:
    """Rule on the accuracy at equal lengths, judged by the lower end of its interval.

    If all pairs differ in length by about the same amount, nothing is known about equal lengths: the figure itself may
    be anything.
    """
    if minimum is None:
        return None
    text = "it could not be measured: the lengths of the completions do not differ, or fewer than 3 prompts were left"
    if found is not None:
        spread = f" ({interval(found)})" if interval(found) else ""
        text = f"{percent(found.value)}{spread} on {found.count or 0:,} pairs"
    return GateRule(
        name="accuracy at equal lengths",
        wanted=f"interval from {percent(minimum)} on",
        found=text,
        passed=found is not None and (found.value if found.ci_low is None else found.ci_low) >= minimum,
    )
