"""Standard sets: the models of the run side by side, what the policy lost and won, and how each set was judged."""

from collections.abc import Sequence

from containers.contracts.configs.answer_sets import CHATS
from containers.contracts.outcome import Metric
from containers.contracts.records import Message
from containers.document.model import (
    Answer,
    Block,
    Facts,
    Fold,
    Note,
    Sample,
    Samples,
    Section,
    Table,
    Text,
    Value,
    heads,
)
from containers.evals.sets.records import MODEL_NAMES, ModelDifference, SetModel, SetResult, SetSample, SetsEvaluation
from containers.formatting import interval, number, percent, quantity
from containers.report.policy.judges import judge_blocks

_LEAD = (
    "The same questions to each model, with the same settings. A difference is of the same items, with its interval "
    "over prompts: where the interval holds 0, chance may have made it."
)


def sets_section(evaluation: SetsEvaluation) -> Section:
    """Return the sets by themselves."""
    return Section("Standard sets", sets_blocks(evaluation), anchor="sets", short="Sets")


def sets_blocks(evaluation: SetsEvaluation) -> tuple[Block, ...]:
    """Return a table of all sets, a table of what judges say of chats, and each set's details, folded."""
    by_rule = [one for one in evaluation.sets if one.scores]
    chats = [one for one in evaluation.sets if one.judges]
    silent = [one for one in evaluation.sets if not one.scores and not one.judges]
    return (
        Note(_LEAD, "lead"),
        *(_tables(by_rule, evaluation.models) if by_rule else ()),
        *(Section(f"{one.name}: policy against start model", judge_blocks(one.judges)) for one in chats),
        *(Note(f"{one.name} says nothing: {_why_silent(one)}.", "caveat") for one in silent),
        *(Note(_untold(one), "caveat") for one in by_rule if one.untold),
        *(Fold(f"{one.name}: {one.title}", _details(one, evaluation.models)) for one in evaluation.sets),
    )


def worst_change(evaluation: SetsEvaluation) -> tuple[str, Metric] | None:
    """The set on which the last model changed for the worst against the one before, and that difference."""
    found = _changes(evaluation)
    return min(found, key=lambda change: change[1].value) if found else None


def losing_sets(evaluation: SetsEvaluation) -> list[tuple[str, Metric]]:
    """The sets on which the last model is worse than the one before, with an interval below 0."""
    return [change for change in _changes(evaluation) if (change[1].ci_high or 0.0) < 0]


def points_text(change: Metric) -> str:
    """A difference of shares in points, with its interval."""
    return f"{_points(change.value)} points ({_points(change.ci_low or 0.0)} to {_points(change.ci_high or 0.0)})"


def _changes(evaluation: SetsEvaluation) -> list[tuple[str, Metric]]:
    if len(evaluation.models) < 2:
        return []
    first, second = evaluation.models[-2:]
    found = ((one.name, one.difference(second, first)) for one in evaluation.sets)
    return [(name, change.difference) for name, change in found if change is not None]


def _tables(sets: Sequence[SetResult], models: Sequence[SetModel]) -> tuple[Table, ...]:
    """Return every model on each set, and the last one against those before; two tables fit on Prefect's page."""
    titles = [MODEL_NAMES[model] for model in models]
    scores = tuple((one.name, _count(one), *(_with_interval(score.score) for score in one.scores)) for one in sets)
    shares = Table(heads("Set", "Items", *titles, numbers=1 + len(models)), scores, name="standard_sets")
    pairs = [(models[-1], models[place]) for place in range(len(models) - 2, -1, -1)]
    if not pairs:
        return (shares,)
    columns = [f"{MODEL_NAMES[second]} − {MODEL_NAMES[first].lower()}, points" for second, first in pairs]
    rows = tuple((one.name, *(_difference(one.difference(second, first)) for second, first in pairs)) for one in sets)
    return shares, Table(heads("Set", *columns, numbers=len(pairs)), rows, name="standard_set_changes")


def _count(one: SetResult) -> Value:
    count = one.scores[0].score.count or 0
    return Text(f"{count:,}", sub=f"{one.answers_per_item} answers each" if one.answers_per_item > 1 else "")


def _with_interval(metric: Metric) -> Value:
    return Text(quantity(metric.value, metric.unit), sub=interval(metric))


def _difference(found: ModelDifference | None) -> Value:
    if found is None:
        return None
    own = found.difference
    low, high = own.ci_low or 0.0, own.ci_high or 0.0
    tone = "good" if low > 0 else "bad" if high < 0 else None
    return Text(_points(own.value), sub=f"{_points(low)} to {_points(high)}", tone=tone)  # type: ignore[arg-type]


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def _details(one: SetResult, models: Sequence[SetModel]) -> tuple[Block, ...]:
    return (
        _facts(one, models),
        *_pass_table(one),
        *_parts(one, models),
        *_samples(one.name, "lost", one.lost, "Right by the start model, wrong by the policy"),
        *_samples(one.name, "won", one.won, "Wrong by the start model, right by the policy"),
        *(
            (Note(f"Left out, for example: {'; '.join(one.left_out_examples)}", "quiet"),)
            if one.left_out_examples
            else ()
        ),
    )


def _facts(one: SetResult, models: Sequence[SetModel]) -> Facts:
    last = one.difference(models[-1], models[-2]) if len(models) > 1 else None
    left_out = ", ".join(f"{reason.replace('_', ' ')}: {count:,}" for reason, count in one.left_out_because)
    ended = ", ".join(f"{MODEL_NAMES[score.model].lower()} {percent(score.ended.value)}" for score in one.scores)
    changed = ""
    if last is not None:
        changed = (
            f"{last.num_better:,} prompts better, {last.num_worse:,} worse (p {number(last.p_value)}); these items "
            f"show a true difference from {100 * last.detectable:.1f} points on in 80 % of cases (estimated)"
        )
    return Facts(
        (
            ("Data", one.origin),
            ("Share of", one.measure),
            ("Rule", one.source),
            ("Rows read", f"{one.rows_read:,}"),
            ("Left out", left_out),
            ("Items answered", f"{one.num_items:,}"),
            ("Answers that ended by themselves", ended),
            (f"{MODEL_NAMES[models[-1]]} beside the one before", changed),
        )
    )


def _pass_table(one: SetResult) -> tuple[Table, ...]:
    if not any(score.pass_at for score in one.scores):
        return ()
    sizes = [metric.name.rpartition("_")[2] for metric in one.scores[0].pass_at]
    rows = [
        (f"{size} answers", *(_with_interval(score.pass_at[place]) for score in one.scores))
        for place, size in enumerate(sizes)
    ]
    titles = [MODEL_NAMES[score.model] for score in one.scores]
    return (Table(heads("At least one of k answers is right", *titles, numbers=len(titles)), tuple(rows)),)


def _parts(one: SetResult, models: Sequence[SetModel]) -> tuple[Table, ...]:
    if not one.parts:
        return ()
    rows = [(part.name, f"{part.num_items:,}", *map(percent, part.scores)) for part in one.parts]
    columns = heads("Part", "Items", *(MODEL_NAMES[model] for model in models), numbers=1 + len(models))
    return (Table(columns, tuple(rows)),)


def _samples(name: str, outcome: str, samples: Sequence[SetSample], note: str) -> tuple[Samples, ...]:
    if not samples:
        return ()
    shown = tuple(
        Sample(
            (Message(role="user", content=sample.prompt),),
            (
                Answer("start model", sample.start, float(outcome == "lost"), outcome == "lost"),
                Answer("policy", sample.policy, float(outcome == "won"), outcome == "won"),
            ),
            Text(f"wanted: {sample.wanted}" if sample.wanted else outcome, tone="good" if outcome == "won" else "bad"),
        )
        for sample in samples
    )
    return (Samples(f"{name}_{outcome}", shown, f"{note}; a blue edge marks the right answer."),)


def _untold(one: SetResult) -> str:
    parts = "; ".join(f"{count:,}: {reason}" for reason, count in one.untold)
    total = sum(count for _, count in one.untold)
    return f"{one.name} leaves out {total:,} item{'' if total == 1 else 's'} for all models ({parts})."


def _why_silent(one: SetResult) -> str:
    if one.kind == CHATS:
        return (
            "open questions are compared by judges, and no judge of evaluate_policy.judges compares without reference "
            "answers"
        )
    return "; ".join(f"{count:,} items: {reason}" for reason, count in one.untold) or "no item was answered"
