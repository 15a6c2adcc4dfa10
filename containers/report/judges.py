"""Who judged the policy, what each judge says, and what it had to do with the training."""

from collections.abc import Sequence

from containers.contracts.outcome import Metric
from containers.contracts.records import JudgeFigures, PolicyEvaluation
from containers.document.model import Block, Note, Table, Text, Value, heads
from containers.formatting import interval, number, percent, quantity


def independent_judges(evaluation: PolicyEvaluation) -> tuple[JudgeFigures, ...]:
    """Return the judges that took no part in training, and could judge."""
    return tuple(judge for judge in evaluation.judges if judge.counts)


def judge_blocks(judges: Sequence[JudgeFigures]) -> tuple[Block, ...]:
    """Return a row for each judge, and notes on those whose word does not count."""
    if not judges:
        return ()
    trained = (judge for judge in judges if judge.part_in_training)
    notes = [
        *(f"{judge.name} is no independent judge: {judge.part_in_training}." for judge in trained),
        *(f"{judge.name} is no judge here: {judge.problem}." for judge in judges if judge.problem),
        *(_order(judge) for judge in judges if judge.first_share is not None),
        *(_untold(judge) for judge in judges if judge.untold and not judge.problem),
    ]
    return (_table(judges), *(Note(text, "caveat") for text in notes), *_pass_table(judges))


def _table(judges: Sequence[JudgeFigures]) -> Table:
    several = sum(judge.p_value is not None for judge in judges) > 1
    columns = ("Judge", "Win rate of the policy", "At equal lengths", "Won, tied, lost", "p", "Policy", "Reference")
    return Table(heads(*columns, numbers=6), tuple(_row(judge, several=several) for judge in judges))


def _row(judge: JudgeFigures, *, several: bool) -> tuple[Value, ...]:
    part = "took part in training" if judge.part_in_training else "took no part in training"
    p_value = "–" if judge.p_value is None else number(judge.p_value)
    if several and judge.p_adjusted is not None and judge.p_value is not None:
        return (*_start(judge, part), Text(p_value, sub=f"{number(judge.p_adjusted)} for all judges"), *_values(judge))
    return (*_start(judge, part), p_value, *_values(judge))


def _start(judge: JudgeFigures, part: str) -> tuple[Value, ...]:
    at_equal = "–" if judge.length_controlled is None else percent(judge.length_controlled.value)
    counts = f"{judge.num_wins:,}, {judge.num_ties:,}, {judge.num_losses:,}"
    return (Text(judge.name, sub=f"{judge.shown}; {part}"), _with_interval(judge.win_rate), at_equal, counts)


def _values(judge: JudgeFigures) -> tuple[Value, ...]:
    return _with_interval(judge.policy), _with_interval(judge.reference)


def _with_interval(metric: Metric | None) -> Value:
    return "–" if metric is None else Text(quantity(metric.value, metric.unit), sub=interval(metric))


def _order(judge: JudgeFigures) -> str:
    first, agreement = (percent(share) for share in (judge.first_share or 0.0, judge.agreement or 0.0))
    return (
        f"{judge.name} saw each pair in both orders: it chose the first answer in {first} of its choices, and the same "
        f"answer in both orders in {agreement} of the pairs; the others are ties."
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
