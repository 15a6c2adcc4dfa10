"""A retraining's decisions: which version is champion now, why, and the figures that decided."""

from collections.abc import Iterator

from containers.contracts.champions import Comparison, Contest, DecisionKind, RunDecision
from containers.document.model import Block, Card, Note, Quantity, Section, Table, Text, Tone, Value, heads
from containers.formatting import MISSING, number, percent
from containers.report.gates import Statement, sentence
from containers.report.inputs import ReportInputs

_TONES: dict[str, Tone] = {"first": "good", "won": "good", "held": "warn"}
DECISION_WORDS: dict[DecisionKind, str] = {
    "first": "first champion",
    "won": "new champion",
    "held": "a person decides",
    "lost": "champion stays",
    "same": "champion stays",
    "refused": "refused at its gate",
    "promoted": "promoted by hand",
    "rolled_back": "rolled back by hand",
}
# What a contest counts: a suite's item may have more than two answers.
_UNITS = {"accuracy": "pairs", "score": "items", "win rate": "prompts"}
_COLUMNS = heads(
    "Compared on",
    "n",
    "Challenger",
    "Champion",
    "Difference",
    "Interval",
    "Better",
    "Worse",
    "p",
    "May fall by",
    "At least",
    "At most, corrected",
    "Would show",
    numbers=12,
)


def decision_section(decision: RunDecision) -> Section:
    """Return the decision in a sentence, what MLflow shows, and the table of figures behind it."""
    outcome, tone = decision_outcome(decision)
    blocks: list[Block] = [Note(sentence(decision.text))]
    if decision.registry:
        blocks.append(Note(decision.registry))
    if decision.comparison is None:
        blocks.append(Note("Nothing was compared, so there is no table.", "quiet"))
    else:
        blocks.append(Table(_COLUMNS, tuple(map(_row, decision.comparison.contests))))
        found = decision.comparison
        notes = (*found.notes, *left_out_lines(found), how_compared(found))
        blocks += [Note(note, "quiet") for note in notes]
    return Section(decision.model, tuple(blocks), outcome=Text(outcome, tone=tone if tone != "plain" else None))


def decision_statements(inputs: ReportInputs) -> list[Statement]:
    """Return a sentence for each decision that names the champion, with the reason behind it."""
    return [
        Statement(_tone(item), _who_reigns(item), " ".join((_why(item), item.registry)).strip())
        for item in inputs.decisions
    ]


def decision_cards(inputs: ReportInputs) -> tuple[Card, ...]:
    """Return challenger minus champion on the frozen set, for each decision with a comparison."""
    return tuple(_card(item.comparison) for item in inputs.decisions if item.comparison is not None)


def decision_outcome(decision: RunDecision) -> tuple[str, Tone]:
    """Return the challenger's outcome in two or three words, and its tone."""
    return DECISION_WORDS[decision.kind], _tone(decision)


def _tone(decision: RunDecision) -> Tone:
    return _TONES.get(decision.kind, "plain")


def _who_reigns(decision: RunDecision) -> str:
    before, after = decision.champion_before, decision.champion_after
    if after is None:
        return f"{decision.model} still has no champion."
    if before == after:
        return f"Version {after} of {decision.model} stays champion."
    return f"Version {after} of {decision.model} is champion now."


def _why(decision: RunDecision) -> str:
    """Return the decision's text without its beginning, which names the champion."""
    return sentence(decision.text.partition(": ")[2] or decision.text)


def _card(comparison: Comparison) -> Card:
    first = comparison.contests[0]
    label = f"Version {comparison.challenger} against champion {comparison.champion}"
    found = first.difference
    if found is None:
        return Card(label, "champion", detail=f"nothing was left of {first.name} to compare on")
    return Card(
        label,
        "champion",
        f"{points(found.value)} points",
        f"{points(found.ci_low)} to {points(found.ci_high)}",
        f"{first.measure} on {first.name}, n = {items_text(first)}, p = {number(first.p_value)}",
    )


def points(share: float | None) -> str:
    """A difference of shares in percentage points with its sign. Example: -0.0123 gives `−1.2`."""
    if share is None:
        return MISSING
    found = round(100 * share, 1)
    return f"{found:+.1f}".replace("-", "−") if found else "0.0"


def counted(count: int, noun: str) -> str:
    """A number with its noun. Example: `1 prompt`, `2,000 pairs`."""
    return f"{count:,} {noun}" if count != 1 else f"1 {noun.removesuffix('s')}"


def items_text(contest: Contest) -> str:
    """Number of items, and of their prompts. Example: `384 pairs of 48 prompts`; of a policy, `48 prompts`."""
    items = counted(contest.count, _UNITS[contest.measure])
    return f"{items} of {prompts}" if (prompts := _prompts_text(contest)) else items


def _prompts_text(contest: Contest) -> str:
    """Number of prompts; empty where the items are prompts, or where an older record does not know it."""
    is_known = contest.num_prompts or not contest.count
    return counted(contest.num_prompts, "prompts") if is_known and contest.measure != "win rate" else ""


def contest_text(contest: Contest) -> str:
    """One line of figures."""
    found = contest.difference
    if found is None or contest.champion is None or contest.challenger is None:
        return f"{contest.name}: nothing was left to compare on"
    return (
        f"{contest.measure} on {contest.name} ({items_text(contest)}): challenger {percent(contest.challenger)}, "
        f"champion {percent(contest.champion)}, difference {points(found.value)} points ({points(found.ci_low)} to "
        f"{points(found.ci_high)}), {contest.num_better:,} better and {contest.num_worse:,} worse, "
        f"p = {contest.p_value:.2g}"
    )


def left_out_lines(comparison: Comparison) -> Iterator[str]:
    """A sentence for each contest from which items were left out, and why."""
    for item in comparison.contests:
        reasons = []
        if item.seen_in_training:
            reasons.append(f"{item.seen_in_training:,} whose prompt, or one like it, one of the two was trained on")
        if item.not_in_both:
            reasons.append(f"{item.not_in_both:,} that were not judged for both")
        if reasons:
            yield f"Left out for both, of {item.name}: {' and '.join(reasons)}."


def how_compared(comparison: Comparison) -> str:
    """Explain the figures, and what the challenger needs to win."""
    bounded = comparison.contests[1:]
    others = (
        f" and must not fall on the others beyond its budget and beyond chance: the upper end of the difference, "
        f"one-sided at {comparison.alpha:g} over {len(bounded)} tests, must not lie below the budget"
        if bounded
        else ""
    )
    lower = (
        f" `At least` is the lower end, one-sided at {comparison.alpha:g} for each suite by itself: larger falls are "
        "ruled out, smaller ones are not."
        if bounded
        else ""
    )
    must = (
        " Where a fall beyond the budget must be ruled out, that end must not lie below the budget, and `Would show` "
        "is the smallest budget that such data rule out in 80 % of cases where both models are equal."
        if any(item.must_rule_out for item in bounded)
        else ""
    )
    return (
        f"Differences in percentage points, with a paired t interval over prompts ({percent(comparison.confidence)}); "
        f"better, worse and p (McNemar's exact test) count prompts. The challenger must win on the first line "
        f"(interval above 0, p below {comparison.alpha:g}){others}. `Would show` is the smallest true win or fall that "
        f"such data show in 80 % of cases (estimated from the differences seen): a smaller one is mostly missed."
        f"{lower}{must}"
    )


def _row(item: Contest) -> tuple[Value, ...]:
    found = item.difference
    budget = "" if item.budget is None else f"{points(item.budget).lstrip('+')} points"
    return (
        f"{item.name} ({item.measure})",
        Text(counted(item.count, _UNITS[item.measure]), sub=_prompts_text(item)),
        Quantity(item.challenger, "fraction"),
        Quantity(item.champion, "fraction"),
        points(found.value) if found else None,
        f"{points(found.ci_low)} to {points(found.ci_high)}" if found else None,
        item.num_better,
        item.num_worse,
        item.p_value,
        f"{budget} — {'not ruled out' if item.must_rule_out else 'fell further'}" if item.regresses else budget or None,
        points(item.at_least) if item.at_least is not None else None,
        points(item.at_most) if item.at_most is not None else None,
        _would_show(item),
    )


def _would_show(item: Contest) -> Value:
    if item.detectable is None:
        return None
    return Text(f"{points(item.detectable).lstrip('+')} points", sub="ruled out" if item.must_rule_out else "")
