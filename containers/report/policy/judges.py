"""Who judged the policy, what each judge says, and what it had to do with the training."""

from collections.abc import Sequence

from containers.contracts.outcome import Metric
from containers.contracts.records import JudgeFigures, PeopleFigures, PolicyEvaluation
from containers.document.model import Block, Note, Table, Text, Value, heads
from containers.formatting import interval, number, percent, quantity


def independent_judges(evaluation: PolicyEvaluation) -> tuple[JudgeFigures, ...]:
    """Return the judges that took no part in training, and could judge."""
    return tuple(judge for judge in evaluation.judges if judge.counts)


def judge_blocks(judges: Sequence[JudgeFigures]) -> tuple[Block, ...]:
    """Return who judged, a row for each judge, and notes on those whose word does not count."""
    if not judges:
        return ()
    notes = [
        *(f"{judge.name} is no judge here: {judge.problem}." for judge in judges if judge.problem),
        *(_order(judge) for judge in judges if judge.first_share is not None and judge.people is None),
        *(_people(judge, judge.people) for judge in judges if judge.people is not None),
        *(_untold(judge) for judge in judges if judge.untold and not judge.problem),
    ]
    return (
        *(_who(judge) for judge in judges),
        _table(judges),
        *_value_table(judges),
        *_pass_table(judges),
        *(Note(text, "caveat") for text in notes),
    )


def _who(judge: JudgeFigures) -> Note:
    if judge.part_in_training:
        return Note(f"{judge.name}: {judge.shown}. It is no independent judge: {judge.part_in_training}.", "caveat")
    return Note(f"{judge.name}: {judge.shown}. It took no part in training.", "quiet")


def _table(judges: Sequence[JudgeFigures]) -> Table:
    several = sum(judge.p_value is not None for judge in judges) > 1
    columns = ("Judge", "Win rate of the policy", "At equal lengths", "Won, tied, lost", "p")
    return Table(heads(*columns, numbers=4), tuple(_row(judge, several=several) for judge in judges))


def _row(judge: JudgeFigures, *, several: bool) -> tuple[Value, ...]:
    counts = f"{judge.num_wins:,}, {judge.num_ties:,}, {judge.num_losses:,}"
    p_value: Value = "–" if judge.p_value is None else number(judge.p_value)
    if several and judge.p_value is not None and judge.p_adjusted is not None:
        p_value = Text(number(judge.p_value), sub=f"{number(judge.p_adjusted)} for all judges")
    return judge.name, _with_interval(judge.win_rate), _with_interval(judge.length_controlled), counts, p_value


def _value_table(judges: Sequence[JudgeFigures]) -> tuple[Table, ...]:
    rows = tuple(
        (
            Text(judge.name, sub="right completions" if judge.is_outcome else "mean value"),
            _with_interval(judge.policy),
            _with_interval(judge.reference),
            _with_interval(judge.difference),
        )
        for judge in judges
        if judge.policy is not None
    )
    return (Table(heads("By judge", "Policy", "Reference", "Difference", numbers=3), rows),) if rows else ()


def _with_interval(metric: Metric | None) -> Value:
    return "–" if metric is None else Text(quantity(metric.value, metric.unit), sub=interval(metric))


def _order(judge: JudgeFigures) -> str:
    first, agreement = (percent(share) for share in (judge.first_share or 0.0, judge.agreement or 0.0))
    return (
        f"{judge.name} saw each pair in both orders: it chose the first answer in {first} of its choices, and the same "
        f"answer in both orders in {agreement} of the pairs; the others are ties."
    )


def _people(judge: JudgeFigures, people: PeopleFigures) -> str:
    each = ", ".join(f"{name} {count:,}" for name, count in people.judged)
    text = f"{judge.name}: pairs judged by each: {each}. Each saw a pair in one order, drawn for that person."
    if people.agreement is None:
        return f"{text} No pair was judged by two people, so how far they agree is not known."
    alpha = "" if people.alpha is None else f" (Krippendorff's alpha {people.alpha:.2f})"
    return (
        f"{text} Two people said the same of {percent(people.agreement)} of {people.num_shared:,} shared pairs{alpha}."
    )


def _untold(judge: JudgeFigures) -> str:
    parts = "; ".join(f"{count:,}: {reason}" for reason, count in judge.untold)
    num_untold = sum(count for _, count in judge.untold)
    return f"{judge.name} could not tell about {num_untold:,} of {judge.num_pairs:,} pairs ({parts})."


def _pass_table(judges: Sequence[JudgeFigures]) -> tuple[Table, ...]:
    rows = [
        (f"{judge.name}, {own.name.rpartition('_')[2]} completions", _with_interval(own), _with_interval(other))
        for judge in judges
        for own, other in zip(judge.pass_at, judge.reference_pass_at, strict=True)
    ]
    if not rows:
        return ()
    return (Table(heads("At least one of k completions is right", "Policy", "Reference", numbers=2), tuple(rows)),)
